GO ?= go
BIN := bin/backing-image-manager
FUZZTIME ?= 60s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build test check bench fuzz demo vulncheck

build:
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -ldflags='-s -w' -o $(BIN) ./cmd/backing-image-manager

test:
	$(GO) test -race ./...

check:
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	./.ci/imports

# Needs curl and sha512sum, 24 GiB of room below TMPDIR on a disk, and quiet.
bench:
	$(GO) test -run '^$$' -bench . -benchtime 3x -timeout 60m ./...

fuzz:
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package || exit 1; \
		done; \
	done

demo: build
	$(BIN) demo

# For those who can reach the vulnerability database; CI cannot.
vulncheck:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...
