GO ?= go
BIN := bin/backing-image-manager
FUZZTIME ?= 60s
SEEDS ?= 10000
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

# All targets compile with the settings of the static binary, so that each package is compiled once.
# Only the tests with the race detector need other settings.
export CGO_ENABLED := 0
export GOFLAGS += -trimpath

.PHONY: help build dist dist-check demo test race check bench fuzz hostile simulate mutants chaos vulncheck

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2; next } /^## / { printf "%16s%s\n", "", substr($$0, 4) }' Makefile

build: ## Build bin/backing-image-manager, a static binary.
	$(GO) build -buildvcs=auto -ldflags='-s -w' -o $(BIN) ./cmd/backing-image-manager

dist: ## Build dist/: deb, rpm and static binary for amd64 and arm64, with bills of materials and checksums.
	rm -rf dist
	NFPM=$(NFPM) CYCLONEDX=$(CYCLONEDX) internal/packages/build dist amd64 arm64

dist-check: ## Build two clones of the commit and compare them, check the debs with lintian, and install them in a clean Debian.
## Needs root, lintian, mmdebstrap and a mirror of Debian.
	$(GO) test -timeout 2h -count 1 -run '^TestDist$$' -v ./examples -packages.check

demo: build ## Show the program at work with two small images, without network or root.
	$(BIN) demo

test: ## Install what the tests need and run them all, some of them also with the race detector.
## Without the rights to install it skips what needs missing programs, and says so.
## TESTFLAGS=-install=false installs nothing; -strict fails for a missing program.
	$(GO) run ./internal/testx/testall $(TESTFLAGS)

race: ## Run the tests of all concurrent packages with the race detector.
	$(GO) run ./internal/testx/testall -race $(TESTFLAGS)

check: ## Check format, vet, staticcheck, go.mod, the imports between packages, sizes and names.
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	./.ci/imports
	$(GO) test -count 1 ./internal/testx/layout

bench: ## Run the benchmarks. They need root, rsync, 24 GiB in TMPDIR and a quiet machine.
	@echo "processor features: $$(grep -m1 '^\(flags\|Features\)' /proc/cpuinfo | tr ' ' '\n' | grep -xE 'sha_ni|avx2|avx512f|sha2|sha512' | tr '\n' ' ')"
	$(GO) test -run '^$$' -bench . -benchtime 3x -timeout 6h ./...

fuzz: ## Run each fuzz target for FUZZTIME (60s).
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package || exit 1; \
		done; \
	done

hostile: ## Validate DIRS (1000) hostile config directories, from seed FIRST (0) on, and let a daemon load them. Needs root and a quiet machine.
	$(GO) test -timeout 10h -count 1 -run 'HostileDirectories$$' -v ./cmd/backing-image-manager -hostile.worst \
		-hostile.dirs $(or $(DIRS),1000) -hostile.first $(or $(FIRST),0) -hostile.size 1048576

simulate: ## Simulate SEEDS (10000) clusters of 5 to 12 nodes, from seed FIRST (0) on.
## KIND=peer: in each cluster one node is compromised. KIND=skew: some nodes do not follow the configuration.
## KIND=both, KIND=none. By default, each seed has one of the four.
	GOGC=400 $(GO) test -timeout 10h -count 1 -run '^TestCluster$$' -v ./reconcile/simulation -cluster.seeds $(SEEDS) -cluster.first $(or $(FIRST),0) -cluster.kind '$(KIND)'

mutants: ## Break each rule of planner and loop on purpose: the simulation has to notice.
## ONLY=PATTERN selects mutants.
	$(GO) test -timeout 10h -count 1 -run '^TestMutants$$' -v ./reconcile/simulation -cluster.mutants '$(or $(ONLY),.)'

chaos: ## Run real daemons through MINUTES (3) of faults from SEED (1) and check that nothing is lost. Needs root.
## A failed run keeps its folder and names it. TESTFLAGS=-chaos.race builds the daemons with the race detector.
	$(GO) test -timeout 10h -count 1 -run '^TestChaos$$' -v ./internal/testx/chaos -chaos.seed $(or $(SEED),1) -chaos.minutes $(or $(MINUTES),3) $(TESTFLAGS)

vulncheck: ## Search the dependencies in the Go vulnerability database (needs internet access).
	$(GO) run $(GOVULNCHECK) ./...
