package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/emitd/emitd/"

// arrows lists what each package may import of the module. An arrow never points back: cmd/emitd →
// coordinator → storage → daemon → node.
var arrows = map[string][]string{
	"node":              {},
	"daemon":            {"node"},
	"daemon/reconcile":  {"daemon", "node"},
	"daemon/supervisor": {"daemon", "daemon/reconcile", "node"},
	"daemon/sweeper":    {"daemon", "node"},
	"daemon/exec":       {"daemon", "node"},

	"storage":             {"daemon", "node"},
	"storage/memory":      {"storage", "storage/internal/rules", "daemon", "node"},
	"storage/postgres":    {"storage", "internal/pgerror", "internal/pgschema", "internal/schema", "daemon", "node"},
	"storage/sqlite":      {"storage", "storage/internal/rules", "internal/bootclock", "internal/schema", "internal/sqlitefile", "daemon", "node"},
	"storage/storagetest": {"storage", "storage/memory", "daemon", "node"},

	"storage/internal/rules": {"storage", "daemon", "node"},
	"storage/object":         {"storage", "storage/blob", "storage/internal/rules", "daemon", "node"},

	"storage/blob":                 {},
	"storage/blob/internal/settle": {"storage/blob"},
	"storage/blob/mem":             {"storage/blob"},
	"storage/blob/dir":             {"storage/blob"},
	"storage/blob/s3":              {"storage/blob", "storage/blob/internal/settle", "internal/address"},
	"storage/blob/gcs":             {"storage/blob", "storage/blob/internal/settle", "internal/address"},
	"storage/blob/throttle":        {"storage/blob"},
	"storage/blob/instrument":      {"storage/blob"},
	"storage/blob/blobtest":        {"storage/blob"},

	"daemon/queue/ledger":                   {},
	"daemon/queue/journal/format":           {},
	"daemon/queue/journal/owner":            {"daemon/queue/journal/format"},
	"daemon/queue/journal/internal/courier": {"daemon/queue/journal/format", "daemon/queue/journal/owner", "storage/blob"},
	"daemon/queue/journal": {
		"daemon/queue/journal/format", "daemon/queue/journal/owner", "daemon/queue/journal/internal/courier", "storage/blob", "daemon",
	},
	"daemon/queue/journal/sim": {
		"daemon/queue/journal/format", "daemon/queue/journal/owner", "daemon/queue/journal/internal/courier", "storage/blob", "storage/blob/mem",
	},
	"daemon/queue":        {"daemon/queue/ledger", "daemon/queue/journal", "storage/blob", "internal/inflight", "daemon", "node"},
	"daemon/queue/worker": {"daemon/queue", "daemon"},

	// The wire format: limits, what is generated from .proto files, the bodies, then client and
	// server.
	"daemon/queue/api/limits":                     {"daemon/queue"},
	"daemon/queue/api/refusal":                    {"daemon/queue", "daemon/queue/api/limits"},
	"daemon/queue/api/osqueuev1":                  {},
	"daemon/queue/api/osqueuev1/osqueuev1connect": {"daemon/queue/api/osqueuev1"},
	"daemon/queue/api/queuev1":                    {},
	"daemon/queue/api/queuev1/queuev1connect":     {"daemon/queue/api/queuev1"},
	"daemon/queue/api/batch":                      {"daemon/queue", "daemon/queue/api/wire", "daemon/queue/api/limits", "daemon/queue/api/refusal", "daemon/queue/api/queuev1"},
	"daemon/queue/api/wire":                       {"daemon/queue", "daemon/queue/api/limits", "daemon/queue/api/refusal"},
	"daemon/queue/api/operate":                    {"daemon/queue", "daemon/queue/api/limits", "daemon/queue/api/wire"},
	"daemon/queue/api/queuetest":                  {"daemon/queue", "daemon/queue/api/limits"},
	"daemon/queue/client": {
		"daemon/queue", "daemon/queue/api/batch", "daemon/queue/api/limits", "daemon/queue/api/operate", "daemon/queue/api/refusal",
		"daemon/queue/api/wire", "daemon/queue/api/queuev1", "daemon/queue/api/queuev1/queuev1connect", "internal/inflight",
	},
	"daemon/queue/client/locate": {"daemon/queue", "daemon"},
	"daemon/queue/api": {
		"daemon/queue", "daemon/queue/client", "daemon/queue/api/batch", "daemon/queue/api/limits", "daemon/queue/api/operate",
		"daemon/queue/api/refusal", "daemon/queue/api/wire", "daemon/queue/api/queuev1", "daemon/queue/api/queuev1/queuev1connect",
		"daemon/queue/api/osqueuev1", "daemon/queue/api/osqueuev1/osqueuev1connect", "internal/inflight",
	},

	"outbox":                                 {"daemon", "daemon/sweeper", "node"},
	"outbox/logtest":                         {"outbox"},
	"outbox/internal/rules":                  {"outbox"},
	"outbox/internal/herald":                 {"outbox"},
	"outbox/sqlitelog":                       {"outbox", "outbox/internal/herald", "outbox/internal/rules", "internal/schema", "internal/sqlitefile", "daemon", "daemon/sweeper"},
	"outbox/pglog":                           {"outbox", "outbox/internal/herald", "outbox/internal/rules", "internal/pgerror", "internal/pgschema", "internal/schema", "daemon", "daemon/sweeper"},
	"outbox/sink":                            {"outbox"},
	"outbox/sink/sinktest":                   {"outbox"},
	"outbox/sink/internal/amazon":            {"outbox", "outbox/sink", "internal/address"},
	"outbox/sink/internal/amazon/amazontest": {"outbox", "outbox/sink", "outbox/sink/sinktest"},
	"outbox/sink/webhook":                    {"outbox", "outbox/sink", "internal/address"},
	"outbox/sink/kafka":                      {"outbox", "outbox/sink", "internal/address"},
	"outbox/sink/nats":                       {"outbox", "outbox/sink", "internal/address"},
	"outbox/sink/rabbitmq":                   {"outbox", "outbox/sink", "internal/address"},
	"outbox/sink/sqs":                        {"outbox", "outbox/sink", "outbox/sink/internal/amazon"},
	"outbox/sink/sns":                        {"outbox", "outbox/sink", "outbox/sink/internal/amazon"},
	"outbox/sink/postgres":                   {"outbox", "outbox/sink", "internal/pgerror"},
	"outbox/sink/stdout":                     {"outbox", "outbox/sink"},
	"outbox/sink/queue":                      {"outbox", "outbox/sink", "daemon/queue"},

	"coordinator/lease":  {"node"},
	"coordinator/plan":   {"daemon", "node"},
	"coordinator/member": {"coordinator/lease", "coordinator/plan", "daemon/reconcile", "storage", "daemon", "node"},
	"coordinator": {
		"coordinator/member", "coordinator/lease", "coordinator/plan", "coordinator/internal/crash", "daemon/reconcile",
		"daemon/supervisor", "daemon/sweeper", "internal/bootclock", "storage", "daemon", "node",
	},
	"coordinator/lock":            {"internal/bootclock", "storage"},
	"coordinator/admin":           {"daemon", "node", "storage"},
	"coordinator/internal/crash":  {},
	"coordinator/coordinatortest": {"coordinator", "coordinator/internal/crash", "coordinator/lease", "storage", "storage/memory", "daemon", "node"},
	"coordinator/sim": {
		"coordinator/member", "coordinator/lease", "coordinator/plan", "storage", "storage/memory", "daemon", "node",
	},

	"internal/planted":  {},
	"internal/house":    {},
	"internal/inflight": {},
	"internal/child":    {},
	"internal/pgtest":   {"internal/child"},
	"internal/cputime":  {},

	// What stores and outbox logs share: the versions of tables, and the helpers for a driver.
	"internal/schema":     {},
	"internal/pgschema":   {},
	"internal/address":    {},
	"internal/pgerror":    {"internal/address"},
	"internal/sqlitefile": {},

	"internal/bootclock": {},
}

// free reports whether a package may import everything: it connects all others.
func free(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "examples/") || strings.HasPrefix(pkg, "e2e")
}

type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	Imports, Deps   []string
}

// list returns the packages of the module, as the go command reports them.
func list(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	pkgs := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

func TestArrowsPointOneWay(t *testing.T) {
	t.Parallel()
	for pkg, p := range list(t) {
		if free(pkg) {
			continue
		}
		allowed, known := arrows[pkg]
		if !known {
			t.Errorf("package %s is not in the table of arrows: add it where it belongs, or move the code", pkg)
			continue
		}
		for _, imp := range p.Imports {
			ours, ok := strings.CutPrefix(imp, module)
			if ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s: no arrow goes there (it may import %v)", pkg, ours, allowed)
			}
		}
	}
}

// pure packages take values and now, and return values.
var pure = []string{"node", "daemon/reconcile", "coordinator/lease", "coordinator/plan", "coordinator/member", "daemon/queue/ledger", "daemon/queue/journal/owner"}

// impure imports bring a clock, I/O, concurrency or a log.
var impure = []string{"context", "database/sql", "io", "log", "log/slog", "net", "net/http", "os", "sync", "sync/atomic", "testing"}

func TestPurePackages(t *testing.T) {
	t.Parallel()
	pkgs := list(t)
	for _, pkg := range pure {
		p, ok := pkgs[pkg]
		if !ok {
			t.Errorf("pure package %s is gone", pkg)
		}
		for _, imp := range p.Imports {
			if slices.Contains(impure, imp) {
				t.Errorf("%s imports %s, and is pure", pkg, imp)
			}
		}
		inspect(t, p, func(at token.Position, n ast.Node) {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%s: goroutines and channels belong in a shell, %s is pure", at, pkg)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
					t.Errorf("%s: time.%s: %s is pure, time comes in as a value", at, n.Sel.Name, pkg)
				}
			}
		})
	}
}

var clocks = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Sleep", "Tick"}

// TestSimulatorDecidesNothing forbids the simulator to make any request of the store itself: all of
// them come from the product's own member. Only faults.go may make requests. There a fault may be
// somebody who changes the store directly, such as an operator who removes a living node's row.
func TestSimulatorDecidesNothing(t *testing.T) {
	t.Parallel()
	requests := []string{"Heartbeat", "Claim", "Report", "UnitReport", "Leave", "Commit", "Change", "NodeChange"}
	inspect(t, list(t)["coordinator/sim"], func(at token.Position, n ast.Node) {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || filepath.Base(at.Filename) == "faults.go" {
			return
		}
		if sel, ok := lit.Type.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "storage" && slices.Contains(requests, sel.Sel.Name) {
				t.Errorf("%s: the simulator makes a storage.%s of its own", at, sel.Sel.Name)
			}
		}
	})
}

func inspect(t *testing.T, p listed, visit func(token.Position, ast.Node)) {
	t.Helper()
	for _, name := range p.GoFiles {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				visit(fset.Position(n.Pos()), n)
			}
			return true
		})
	}
}

// heavy modules, with the only packages through which they may be imported.
var heavy = map[string][]string{
	"github.com/jackc/pgx/":           {"storage/postgres", "outbox/pglog", "outbox/sink/postgres", "internal/pgerror", "internal/pgschema", "internal/pgtest"},
	"modernc.org/":                    {"storage/sqlite", "outbox/sqlitelog", "internal/sqlitefile"},
	"github.com/aws/":                 {"storage/blob/s3", "outbox/sink/internal/amazon", "outbox/sink/sqs", "outbox/sink/sns"},
	"golang.org/x/oauth2":             {"storage/blob/gcs"},
	"github.com/twmb/franz-go":        {"outbox/sink/kafka"},
	"github.com/nats-io/":             {"outbox/sink/nats"},
	"github.com/rabbitmq/":            {"outbox/sink/rabbitmq"},
	"connectrpc.com/":                 {"daemon/queue/api", "daemon/queue/api/osqueuev1/osqueuev1connect", "daemon/queue/api/queuev1/queuev1connect", "daemon/queue/client"},
	"github.com/coder/websocket":      {"daemon/queue/api"},
	"github.com/spf13/cobra":          nil,
	"go.opentelemetry.io/otel/sdk":    nil,
	"github.com/prometheus/":          nil,
	"github.com/goccy/go-yaml":        nil,
	"github.com/lmittmann/tint":       nil,
	"pgregory.net/rapid":              {"storage/storagetest"},
	"github.com/rogpeppe/go-internal": nil,
}

func TestHeavyModulesStayOutOfTheLibrary(t *testing.T) {
	t.Parallel()
	for pkg, p := range list(t) {
		if free(pkg) {
			continue
		}
		for _, dep := range p.Deps {
			for prefix, allowed := range heavy {
				if strings.HasPrefix(dep, prefix) && !slices.Contains(allowed, pkg) {
					t.Errorf("%s depends on %s", pkg, dep)
				}
			}
		}
	}
}
