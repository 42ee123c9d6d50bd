GO ?= go
BIN := bin/backing-image-manager
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build test check bench fuzz demo vulncheck

build:
	$(GO) build -trimpath -buildvcs=auto -ldflags='-s -w' -o $(BIN) ./cmd/backing-image-manager

test:
	$(GO) test -race ./...

check:
	test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) mod tidy -diff
	./.ci/imports

demo: build
	$(BIN) demo
