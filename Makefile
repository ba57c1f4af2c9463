# The commands of the project. `make test` is the whole proof; `make check` is what needs no server.

GO ?= go
TOOL = $(GO) tool -modfile=$(CURDIR)/tools/go.mod
SOURCES = $$(git ls-files '*.go' | grep -v -e '\.pb\.go$$' -e '\.connect\.go$$')
# Packages whose tests need a Postgres server.
POSTGRES = -e "/storage/postgres$$" -e "/outbox/postgres$$" -e "/internal/pgtest$$"
# Packages without goroutines: the race detector finds nothing in them and makes them ten times slower.
ALONE = -e "/internal/coordinator/sim$$" -e "/internal/coordinator/member$$" -e "/internal/coordinator/plan$$" -e "/internal/coordinator/lease$$" -e "/queue/ledger$$" -e "/journal/owner$$"
# Packages whose tests take longer than all others together: whole processes, the suite of the stores over objects.
LONG = -e "/cmd/emitd$$" -e "/storage/object$$"
# Packages whose goroutines share most: make check has these with the race detector, make race all.
SHARING = ./coordinator ./coordinator/lock ./internal/coordinator/supervisor ./queue/broker ./outbox ./storage/memory

# The drill that promises that no heartbeat is late runs beside nothing else.
CROWD = '^TestDrillManyNodes$$'
# This one too, and the drill that builds an emitd of an older commit: only make drills has it.
APART = '^TestDrill(ManyNodes|Upgrade)$$'

.PHONY: help deps test test-go check race cross docs drills storm matrix bench fmt lint build vuln console screenshots

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what the full tests need (Debian packages)
	@tools/deps

build: ## build bin/emitd
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/emitd ./cmd/emitd

console: ## build the console's pages from their sources (Node.js); what is built is committed
	cd internal/admin/console/web && npm ci --ignore-scripts --no-progress && npm run build

screenshots: ## take pictures of every page of the console into bin/screenshots (Node.js, Chromium)
	cd e2e && EMITD_TEST_SCREENSHOTS=$(CURDIR)/bin/screenshots $(GO) test -count=1 -timeout 10m -run '^TestScreenshots$$' ./console
	cp bin/screenshots/console.png docs/console.png # the README has it

test: deps ## everything: unit, stories, conformance, 300 seeds, planted bugs, each drill twice
	$(GO) vet ./...
	EMITD_TEST_SEEDS=1..1 EMITD_TEST_JOURNAL_SEEDS=170 $(GO) test -vet=off -timeout 20m ./... # the storms follow
	EMITD_TEST_SEEDS=1..300 GOGC=400 $(GO) test -count=1 -timeout 30m -run 'TestStorm$$' ./internal/coordinator/sim
	EMITD_TEST_SEEDS=1..100 GOGC=400 $(GO) test -count=1 -timeout 30m -run 'TestStormFast$$' ./internal/coordinator/sim
	GOGC=400 $(GO) test -count=1 -timeout 40m -tags planted -run TestPlanted ./internal/planted
	cd e2e && $(GO) vet ./... && $(GO) test -vet=off -count=1 -timeout 30m -skip '^TestDrill' ./...
	cd e2e && $(GO) test -vet=off -p 2 -parallel 3 -count=2 -timeout 30m -run '^TestDrill' -skip $(APART) ./drill ./queue ./outbox ./sink # they wait a lot
	cd e2e && $(GO) test -vet=off -count=2 -timeout 10m -run $(CROWD) ./drill
	cd e2e && $(GO) test -vet=off -count=1 -timeout 10m -run '^TestDrill' ./hostile # 20 s; EMITD_TEST_HOSTILE=1h takes an hour

test-go: ## what needs nothing but Go; says at the end what did not run
	$(GO) vet ./...
	$(GO) test -timeout 20m $$($(GO) list ./... | grep -v $(POSTGRES))
	@echo "not run: storage/postgres, outbox/postgres, internal/pgtest, cmd/emitd/internal/pgstories and e2e need a Postgres server (make test installs it)"

check: lint ## format, vet, linters, house rules, unit tests, stories, 50 seeds of a virtual hour; -race where most is shared
	@test -z "$$($(TOOL) gofumpt -l $(SOURCES))" || { $(TOOL) gofumpt -l $(SOURCES); echo "run: make fmt"; exit 1; }
	$(GO) vet ./...
	EMITD_TEST_SEEDS=1..50 EMITD_TEST_HOURS=1 $(GO) test -vet=off -p 4 -timeout 10m $$($(GO) list ./... | grep -v $(POSTGRES) $(LONG))
	$(GO) test -vet=off -p 4 -race -timeout 10m $(SHARING)

race: deps ## all packages that have goroutines, -race
	$(GO) test -vet=off -race -timeout 30m $$($(GO) list ./... | grep -v $(ALONE))

cross: ## build and vet for macOS and Windows
	for os in darwin windows; do \
		echo "GOOS=$$os"; \
		GOOS=$$os CGO_ENABLED=0 $(GO) vet ./... && GOOS=$$os CGO_ENABLED=0 $(GO) build ./... || exit 1; \
	done

fmt: ## format all files
	$(TOOL) gofumpt -w $(SOURCES)

lint: ## run the linters
	$(TOOL) golangci-lint run ./...
	cd e2e && $(TOOL) golangci-lint run ./...

SITE ?= $(CURDIR)/site
docs: ## the documents as a site, in the folder site (Debian package hugo)
	hugo --config tools/site/hugo.yaml --destination $(SITE) --cleanDestinationDir

drills: deps ## the counts of the promises on real processes; writes docs/measurements.md
	cd e2e && EMITD_TEST_DRILLS=full $(GO) test -p 1 -count=1 -timeout 120m -run 'TestDrill' -v ./drill ./queue ./outbox ./sink ./hostile

vuln: ## known vulnerabilities that the program can reach; asks vuln.go.dev
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

SEEDS ?= 1..2000
storm: ## many seeds of 24 virtual hours: make storm SEEDS=1..2000 (resumable)
	EMITD_TEST_SEEDS=$(SEEDS) EMITD_TEST_STORM_PROGRESS=$(CURDIR)/.storm $(GO) test -count=1 -timeout 0 -run 'TestStorm' -v ./internal/coordinator/sim

matrix: ## the tests of storage/postgres and outbox/postgres on Postgres 14 to 18, each fetched once
	cd e2e && $(GO) run ./pgmatrix

bench: deps ## the benchmarks of the promises, as ratios within one run; writes docs/measurements.md
	cd e2e && $(GO) run ./benchdoc
