GO ?= go
BIN := bin/backing-image-manager
FUZZTIME ?= 60s
SEEDS ?= 10000
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build test check bench fuzz simulate mutants demo vulncheck

build:
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -ldflags='-s -w' -o $(BIN) ./cmd/backing-image-manager

# Of what the race detector makes slow, and finds nothing in, it gets samples.
test:
	$(GO) test ./...
	$(GO) test -race ./...

check:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	./.ci/imports

# Needs curl, rsync and sha512sum, root with ip and tc for links of a known rate,
# 24 GiB of room below TMPDIR on a disk, and quiet.
bench:
	$(GO) test -run '^$$' -bench . -benchtime 3x -timeout 60m ./...

fuzz:
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package || exit 1; \
		done; \
	done

# Clusters of 5 to 12 nodes, one for each seed, from the first on.
simulate:
	GOGC=400 $(GO) test -timeout 10h -count 1 -run '^TestCluster$$' -v ./reconcile -cluster.seeds $(SEEDS) -cluster.first $(or $(FIRST),0)

# Each rule broken on purpose, to see that the simulation notices.
mutants:
	$(GO) test -timeout 10h -count 1 -run '^TestMutants$$' -v ./reconcile -cluster.mutants '$(or $(ONLY),.)'

demo: build
	$(BIN) demo

# For those who can reach the vulnerability database; CI cannot.
vulncheck:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...
