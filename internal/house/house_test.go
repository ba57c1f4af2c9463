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

// layers are the layers of the module, lowest first, by the first element of a package's path. A package may import its
// own layer and those below it. What lies in internal/LAYER belongs to that layer; what lies in internal otherwise is
// below all of them. coordinator/admin shows all other layers and is a layer of its own.
var layers = []string{"node", "daemon", "storage", "coordinator", "queue", "outbox", "admin", "cmd", "examples", "e2e"}

// layerOf returns the layer of a package, -1 for what is below all of them.
func layerOf(pkg string) int {
	if pkg == "coordinator/admin" {
		return slices.Index(layers, "admin")
	}
	first, rest, _ := strings.Cut(pkg, "/")
	if first == "internal" {
		first, _, _ = strings.Cut(rest, "/")
	}
	return slices.Index(layers, first)
}

// free reports whether a package may import everything: it connects all others.
func free(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "examples/") || strings.HasPrefix(pkg, "e2e")
}

type listed struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	Imports, Deps         []string
	Export                string // the file with the compiled package's declarations
}

// list returns the packages of the module, as the go command reports them.
func list(t *testing.T) map[string]listed {
	t.Helper()
	return goList(t, "./...")
}

// goList returns the packages that go list reports, by their path without the module's.
func goList(t *testing.T, args ...string) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps,Export"}, args...)...)
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
		layer := layerOf(pkg)
		if layer < 0 && !strings.HasPrefix(pkg, "internal/") {
			t.Errorf("package %s is in no layer: move it into one of %v, or into internal", pkg, layers)
		}
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module); ok && layerOf(ours) > layer {
				t.Errorf("%s imports %s, which is above it: the layers are %v, lowest first", pkg, ours, layers)
			}
		}
	}
}

// pure packages take values and now, and return values.
var pure = []string{"node", "internal/coordinator/lease", "internal/coordinator/plan", "internal/coordinator/member", "queue/internal/ledger", "queue/internal/journal/owner", "internal/schedule", "internal/access"}

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
	requests := []string{"Heartbeat", "TermRequest", "Report", "UnitReport", "Leave", "Commit", "Change", "NodeChange"}
	inspect(t, list(t)["internal/coordinator/sim"], func(at token.Position, n ast.Node) {
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
	"github.com/jackc/pgx/":           {"storage/postgres", "outbox/postgres", "outbox/sink/postgres", "internal/pgerror", "internal/pgschema", "internal/pgtest"},
	"modernc.org/":                    {"storage/sqlite", "outbox/sqlite", "internal/sqlitefile"},
	"github.com/aws/":                 {"storage/blob/s3", "outbox/sink/internal/amazon", "outbox/sink/sqs", "outbox/sink/sns"},
	"golang.org/x/oauth2":             {"storage/blob/gcs"},
	"github.com/twmb/franz-go":        {"outbox/sink/kafka"},
	"github.com/nats-io/":             {"outbox/sink/nats"},
	"github.com/rabbitmq/":            {"outbox/sink/rabbitmq"},
	"connectrpc.com/":                 {"queue/api", "internal/queue/wire/osqueuev1/osqueuev1connect", "internal/queue/wire/queuev1/queuev1connect", "queue/client"},
	"github.com/coder/websocket":      {"queue/api"},
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
