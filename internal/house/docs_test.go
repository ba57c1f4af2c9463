package house

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/audit"
)

// pages returns the text of each public page by its path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "node_modules" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".md") && !strings.Contains(name, "/testdata/") {
			out[name] = read(t, name)
		}
		return err
	})
	if err != nil || len(out) < 10 {
		t.Fatalf("%d pages were found: %v", len(out), err)
	}
	return out
}

var root = filepath.Join("..", "..")

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// anchors are the places in a page that a link can name, as GitHub derives them from headings.
func anchors(text string) (out []string) {
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				return r
			}
			return -1
		}, strings.ToLower(m[1])))
	}
	return out
}

// TestLinks: the target of each link in a page exists, with its heading, and each page in docs is the target of a
// link.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	linked := map[string]bool{}
	for name, text := range all {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(to))); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
			if anchor != "" && !slices.Contains(anchors(all[to]), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", name, m[1], to)
			}
			linked[to] = linked[to] || to != name
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "docs/") && !linked[name] && !linked[path.Dir(name)] {
			t.Errorf("no page links to %s", name)
		}
	}
}

// TestDecisionsAreListed: the list contains each decision with its title, in order, and nothing else.
func TestDecisionsAreListed(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "0*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no decision was found: %v", err)
	}
	want := ""
	for _, file := range files {
		base := filepath.Base(file)
		title, _, _ := strings.Cut(read(t, "docs/decisions/"+base), "\n")
		first, _, _ := strings.Cut(base, "-")
		number := strings.TrimLeft(first, "0") // numbers may be left out, not given twice
		if strings.Contains(want, "\n"+number+". ") || !strings.HasPrefix(title, "# "+number+". ") {
			t.Errorf("%s with the title %q is not number %s, or another file is", base, title, number)
		}
		want += number + ". [" + strings.TrimPrefix(title, "# "+number+". ") + "](" + base + ")\n"
	}
	if !strings.Contains(read(t, "docs/decisions/README.md"), "\n\n"+want) {
		t.Errorf("docs/decisions/README.md has not this list:\n%s", want)
	}
}

const eventsPage = "docs/reference/events.md"

// TestEventsAreDocumented: the page of events contains each kind and reason of the sources, and no other.
func TestEventsAreDocumented(t *testing.T) {
	t.Parallel()
	kinds := constants(t, "daemon/event.go", "EventKind")
	for _, command := range constants(t, "daemon/command.go", "CommandKind") {
		kinds = append(kinds, string(daemon.CommandKind(command).Event()))
	}
	for _, act := range constants(t, "queue/queue.go", "Act") {
		kinds = append(kinds, audit.Queue+act)
	}
	kinds = append(kinds, audit.Declare, audit.Remove, audit.Reshard)
	for _, verb := range []string{"retry", "skip", "purge", "replay", "pause", "resume", "forget"} {
		kinds = append(kinds, audit.Outbox+verb)
	}
	slices.Sort(kinds)
	reasons := slices.Concat(
		constants(t, "node/node.go", "LossReason"),
		constants(t, "internal/coordinator/plan/why.go", "Rule"),
		constants(t, "internal/coordinator/member/api.go", "CancelCause"),
		constants(t, "storage/sqlite/sqlite.go", "ReasonRebooted"),
		// Evidence and reports: all texts of these files except the names of phases.
		texts(parse(t, "internal/coordinator/member/deadlines.go")),
		texts(without(parse(t, "internal/coordinator/member/runs.go"), "phase")),
		given(t),
	)
	slices.Sort(reasons)
	page := read(t, eventsPage)
	compare(t, "kind", kinds, column(page, "kind"))
	compare(t, "reason", slices.Compact(reasons), slices.Concat(column(page, "reason"), column(page, "cause")))
	for _, f := range constants(t, "internal/coordinator/plan/why.go", "Filter") {
		if !strings.Contains(page, "`"+f+"`") {
			t.Errorf("%s has no filter %q", eventsPage, f)
		}
	}
}

// compare reports what only one of the two contains.
func compare(t *testing.T, what string, sources, page []string) {
	t.Helper()
	if len(sources) == 0 {
		t.Fatalf("the sources have no %s: this test looks in the wrong place", what)
	}
	for _, s := range sources {
		if !slices.Contains(page, s) {
			t.Errorf("%s has no %s %q", eventsPage, what, s)
		}
	}
	for _, s := range page {
		if !slices.Contains(sources, s) {
			t.Errorf("%s has the %s %q, which the sources do not know", eventsPage, what, s)
		}
	}
}

// column returns the words between backquotes in the first cells of the tables with that heading.
func column(page, name string) (out []string) {
	in := false
	for _, line := range strings.Split(page, "\n") {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		switch {
		case !strings.HasPrefix(line, "|"):
			in = false
		case cell == name:
			in = true
		case in:
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
				out = append(out, m[1])
			}
		}
	}
	return out
}

// TestTelemetryIsDocumented: a page contains each metric, attribute and span of the sources, and the page of
// metrics contains no other.
func TestTelemetryIsDocumented(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^(emitd|messaging|db)\.[a-z_.]+$`)
	known := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (file == "e2e" || file == "tools") {
			return cmp.Or(err, fs.SkipDir)
		}
		if !d.IsDir() && strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			for _, text := range texts(parse(t, file)) {
				known[text] = known[text] || name.MatchString(text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Names with the same prefix that are no metric: two files, a subject of NATS, the type of an event, a setting
	// of a Postgres session.
	for _, other := range []string{"emitd.yaml", "emitd.db", "emitd.fence", "emitd.message", "emitd.server"} {
		delete(known, other)
	}
	page := read(t, "docs/reference/metrics.md")
	both := page + read(t, "docs/how-to/outbox-publish.md")
	found := 0
	for text, is := range known {
		if is {
			found++
		}
		if is && !strings.Contains(both, "`"+text+"`") {
			t.Errorf("neither docs/reference/metrics.md nor docs/how-to/outbox-publish.md has %s", text)
		}
	}
	if found < 50 {
		t.Errorf("only %d names were found: this test looks in the wrong place", found)
	}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(page, -1) {
		if name.MatchString(m[1]) && !known[m[1]] {
			t.Errorf("docs/reference/metrics.md has %s, which the sources do not know", m[1])
		}
	}
}

// spoken is a text of the sources in the form in which the page contains it.
func spoken(text string) string {
	text = regexp.MustCompile(`%[a-z]`).ReplaceAllString(text, "…")
	if strings.HasSuffix(text, " ") {
		text += "…" // more is appended
	}
	return text
}

// constants returns the texts of a file's constants of that type or name.
func constants(t *testing.T, file, name string) (out []string) {
	t.Helper()
	ast.Inspect(parse(t, file), func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		typ, _ := v.Type.(*ast.Ident)
		for i, value := range v.Values {
			if lit, ok := value.(*ast.BasicLit); ok && (v.Names[i].Name == name || typ != nil && typ.Name == name) {
				out = append(out, spoken(unquote(lit)))
			}
		}
		return false
	})
	if len(out) == 0 {
		t.Errorf("%s has no constants %s", file, name)
	}
	return out
}

// writers are the packages that write events, or decide about them.
var writers = []string{
	"daemon", "internal/coordinator/supervisor", "coordinator", "internal/coordinator/member", "storage",
	"storage/internal/rules", "storage/memory", "storage/sqlite", "storage/postgres", "storage/object",
}

// given returns the texts that are used as a reason anywhere: for a field or variable of that name, or in SQL.
func given(t *testing.T) (out []string) {
	t.Helper()
	for _, pkg := range writers {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", pkg, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			ast.Inspect(parse(t, pkg+"/"+filepath.Base(file)), func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.KeyValueExpr:
					if isReason(n.Key) {
						out = append(out, texts(n.Value)...)
					}
				case *ast.AssignStmt:
					for i, to := range n.Lhs {
						if isReason(to) && len(n.Rhs) == len(n.Lhs) {
							out = append(out, texts(n.Rhs[i])...)
						}
					}
				}
				return true
			})
		}
	}
	sql, err := filepath.Glob(filepath.Join(root, "storage", "postgres", "sql", "*.sql"))
	if err != nil || len(sql) == 0 {
		t.Fatalf("storage/postgres has no SQL: %v", err)
	}
	for _, file := range sql {
		for _, m := range regexp.MustCompile(`'([^']+)' as reason`).FindAllStringSubmatch(read(t, "storage/postgres/sql/"+filepath.Base(file)), -1) {
			out = append(out, m[1])
		}
	}
	return out
}

func isReason(n ast.Expr) bool {
	switch n := n.(type) {
	case *ast.Ident:
		return strings.EqualFold(n.Name, "reason")
	case *ast.SelectorExpr:
		return n.Sel.Name == "Reason"
	}
	return false
}

// texts returns the texts below n, in the form in which the page contains them, except those of imports.
func texts(n ast.Node) (out []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text := unquote(n); text != "" {
				out = append(out, spoken(text))
			}
		}
		return true
	})
	return out
}

// without removes a function or method from the file.
func without(f *ast.File, name string) *ast.File {
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Name.Name == name
	})
	return f
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// unquote returns the value of a string literal, "" if it is no string.
func unquote(lit *ast.BasicLit) string {
	if lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}
