# Everything that can be done with this repository. `make` alone lists it.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
PREFIX  ?= /usr/local

# What is built once and kept: tools here, the test cluster's programs beside them.
CACHE := $(or $(VMIP_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kubectl-vmip)
TOOLS := $(CACHE)/tools

GOLANGCI_LINT := $(TOOLS)/golangci-lint-v2.7.2
KREW_VALIDATE := $(TOOLS)/validate-krew-manifest-v0.5.0

package   := github.com/kubectl-vmip/kubectl-vmip/pkg/version
ldflags   := -s -w -X $(package).version=$(VERSION) -X $(package).commit=$(COMMIT)
build     := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(ldflags)'
platforms := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# What `go test` is to run without a cluster: all but the tests against one.
unit       = $$($(GO) list ./... | grep -v /test/)

.DEFAULT_GOAL := help
.PHONY: help build cross install demo test test-unit test-e2e test-ledger test-faults-ledger fuzz bench docs clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/kubectl-vmip
	$(build) -o bin/ ./cmd/kubectl-vmip

cross: ## Build for linux, darwin and windows on amd64 and arm64, into dist/
	@set -e; for p in $(platforms); do \
		os=$${p%/*} arch=$${p#*/}; echo "dist/$${os}_$$arch"; \
		GOOS=$$os GOARCH=$$arch $(build) -o dist/$${os}_$$arch/ ./cmd/kubectl-vmip; \
	done

install: build ## Install the plugin and its completion into PREFIX/bin (/usr/local/bin)
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 bin/kubectl-vmip pkg/cmd/completion/kubectl_complete-vmip $(DESTDIR)$(PREFIX)/bin/

demo: ## Show the main job on a real control plane with simulated nodes (KEEP=1 leaves it running)
	@bash test/demo/demo.sh

test: test-unit cluster-test test-ledger test-e2e ## Run all tests: unit, the test cluster, the ledger's faults (a part), end to end

test-unit: ## Run the tests that need no cluster, with the race detector
	$(GO) test -race $(unit)

test-e2e: ## Run the built plugin as `kubectl vmip` against real control planes
	$(GO) test -count=1 -timeout 20m ./test/e2e/...

test-ledger: ## Break the ledger's protocol on purpose: a part that is the same every time
	$(GO) test -count=1 -timeout 15m -parallel 8 ./test/fault ./test/ledger

test-faults-ledger: ## Break the ledger's protocol at every call, with recorded histories (under 30 minutes)
	VMIP_FAULTS=all $(GO) test -count=1 -timeout 60m -parallel 8 -v ./test/ledger
fuzz: ## Run every fuzz target for FUZZTIME (2m), one after the other; FUZZPARALLEL spares CPUs
	@GO='$(GO)' bash hack/fuzz.sh

bench: ## Run the benchmarks; ratios against peers go to .bench/results.json
	$(GO) test -run '^$$' -bench . -benchmem $(unit)
	$(GO) -C test/bench test -run '^$$' -bench . -benchtime 1x -timeout 30m -v . 2>/dev/null

docs: ## Generate docs/reference from the commands
	$(GO) run ./docs/generate docs/reference

clean: ## Remove what was built here (not the cache)
	rm -rf bin dist

# Verification: what a review need not look for.

.PHONY: verify verify-format verify-vet verify-lint verify-modules verify-krew verify-docs verify-words
verify: verify-format verify-vet verify-lint verify-modules verify-krew verify-docs verify-words ## Check everything but the tests

verify-format: ## Check that all Go code is formatted
	@out=$$(gofmt -l cmd docs hack pkg test); [ -z "$$out" ] || { echo "run gofmt -w on:"; echo "$$out"; exit 1; }

verify-vet: ## Run go vet on both modules, and on the plugin as windows sees it
	$(GO) vet ./...
	GOOS=windows $(GO) vet -trimpath ./cmd/... ./pkg/...
	$(GO) -C test/cluster vet ./...
	$(GO) -C test/bench vet ./...

verify-lint: $(GOLANGCI_LINT) ## Run golangci-lint (built into the cache once, about 4 minutes)
	$(GOLANGCI_LINT) run --allow-parallel-runners

verify-modules: ## Check that go.mod and go.sum of both modules are tidy
	$(GO) mod tidy -diff
	$(GO) -C test/cluster mod tidy -diff
	$(GO) -C test/bench mod tidy -diff

verify-krew: $(KREW_VALIDATE) ## Render .krew.yaml and have krew's own validator check it
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(GO) run ./hack/krew-manifest .krew.yaml v0.1.0 > "$$dir/vmip.yaml" && \
	$(KREW_VALIDATE) -skip-install -manifest "$$dir/vmip.yaml"

verify-docs: ## Check that docs/reference is what the commands say
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(GO) run ./docs/generate "$$dir" && { diff -r docs/reference "$$dir" || { echo "run make docs"; exit 1; }; }

verify-words: ## Check for words that must not be in the repository
	@bash hack/verify-words.sh

$(GOLANGCI_LINT):
	@mkdir -p $(TOOLS) && echo "building golangci-lint, once"
	GOBIN=$(TOOLS)/new GOFLAGS=-buildvcs=false $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.7.2
	@mv $(TOOLS)/new/golangci-lint $@

$(KREW_VALIDATE):
	@mkdir -p $(TOOLS) && echo "building krew's validator, once"
	GOBIN=$(TOOLS)/new GOFLAGS=-buildvcs=false $(GO) install sigs.k8s.io/krew/cmd/validate-krew-manifest@v0.5.0
	@mv $(TOOLS)/new/validate-krew-manifest $@

include test/cluster/cluster.mk
