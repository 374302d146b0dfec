# The test cluster: see docs/design/test-cluster.md. Included by the Makefile at the top.
#
# CLUSTER_NAME, CLUSTER_NODES, CLUSTER_CNI, CLUSTER_KUBEVIRT and CLUSTER_DIR are read by vmip-cluster itself.

cluster_src := $(dir $(lastword $(MAKEFILE_LIST)))
cluster_bin = $$(go -C $(cluster_src) run ./cmd/build)
# Whoever has never started a cluster need not build one to hear that none runs.
cluster_none = test ! -d "$${CLUSTER_DIR:-.cluster}" && echo "no cluster is running"
# A cluster is stopped with the programs that started it, wherever the cache is now.
cluster_own = bin=$$(sed -n 's/.*"bin": *"\([^"]*\)".*/\1/p' "$${CLUSTER_DIR:-.cluster/$${CLUSTER_NAME:-vmip}}/state.json" 2>/dev/null); [ -x "$$bin/vmip-cluster" ] || bin=$(cluster_bin)

.PHONY: cluster-build cluster-up cluster-down cluster-status cluster-test

cluster-build: ## Build the control plane's binaries into a cache (once, about 8 minutes on two cores)
	@bin=$(cluster_bin) && echo "binaries: $$bin"

cluster-up: ## Start a test cluster and print its KUBECONFIG (CLUSTER_NAME, CLUSTER_NODES, CLUSTER_CNI)
	@bin=$(cluster_bin) && exec "$$bin/vmip-cluster" up

cluster-down: ## Stop the test cluster and remove its state
	@$(cluster_none) || { $(cluster_own) && exec "$$bin/vmip-cluster" down; }

cluster-status: ## Say what runs of the test cluster, and whether it is healthy
	@$(cluster_none) && exit 1 || { $(cluster_own) && exec "$$bin/vmip-cluster" status; }

cluster-test: cluster-build ## Test the test cluster itself, on clusters of its own
	@bin=$(cluster_bin) && CLUSTER_BIN=$$bin go -C $(cluster_src) test -count=1 -timeout 20m ./...
