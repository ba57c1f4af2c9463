package house

import (
	"go/ast"
	"go/token"
	"slices"
	"testing"
)

// makers are the functions that make log handlers, with the only places that may call them: there,
// durations get units. The helper for other people's tests prints text, which has units by itself.
var makers = []string{"slog.NewJSONHandler", "slog.NewTextHandler", "tint.NewTextHandler", "tint.NewHandler", "otelslog.NewHandler", "otelslog.NewLogger"}

var mayMake = []string{"cmd/emitd/internal/telemetry", "coordinator/coordinatortest"}

// TestLogsHaveOneHandler: a log from any other handler would have durations in nanoseconds.
func TestLogsHaveOneHandler(t *testing.T) {
	t.Parallel()
	used := 0
	for path, p := range list(t) {
		inspect(t, p, func(at token.Position, n ast.Node) {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || !slices.Contains(makers, x.Name+"."+sel.Sel.Name) {
				return
			}
			if used++; !slices.Contains(mayMake, path) {
				t.Errorf("%s: %s.%s: logs are written by telemetry.NewLog, where durations have units", at, x.Name, sel.Sel.Name)
			}
		})
	}
	if used < 3 {
		t.Errorf("%d handlers were found: this test looks in the wrong place", used)
	}
}
