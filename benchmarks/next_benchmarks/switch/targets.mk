bench: $(INSTALLED) .venv/.rivals ## how fast rules, rounds and files are here, against other code and the hardware: ten minutes
	@rm -f $(PERFORMANCE)/measured.json
	@status=0; $(KEPT) $(BIN)/pytest benchmarks -rs --measured $(PERFORMANCE)/measured.json || status=$$?; \
	$(BIN)/fedsdg render speed --measured $(PERFORMANCE)/measured.json --output $(PERFORMANCE) && exit $$status
bench-compare: $(INSTALLED) ## whether rules and whole runs are slower than at BASE (QUICK=1: in small, as CI does)
	$(KEPT) $(BIN)/python -m benchmarks.compare $(BASE) $(if $(QUICK),--quick) --measured $(PERFORMANCE)/commits.json
gate: $(INSTALLED) ## whether every kind of run (FEW=1: fifteen) is bit for bit what it is at BASE
	$(BIN)/python -m tests.tools.same_bytes $(BASE) $(if $(FEW),--few)
planted: $(INSTALLED) ## plant known faults in a copy, one by one (ROOM=models, PART=1/4): do the tests find them?
	$(BIN)/python -m tests.tools.planted $(if $(ROOM),--room $(ROOM)) $(if $(PART),--part $(PART))
gpu: ## check a machine with a GPU, into OUT=folder (DATA=folder with cifar100): docs/gpu.md
	@test -n "$(OUT)" || { echo "error: say where the outputs go: make gpu OUT=folder" >&2; exit 1; }
	@PYTHONPATH=$(CURDIR) $(if $(DATA),FEDSDG_DATA=$(abspath $(DATA))) $(PYTHON) -m benchmarks.on_gpu --out $(OUT)
