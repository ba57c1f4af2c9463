package planted

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the module's directory.
var root = filepath.Join("..", "..")

func all(t *testing.T) []bug {
	t.Helper()
	bugs, err := bugs()
	if err != nil {
		t.Fatal(err)
	}
	return bugs
}

// TestBugsFitTheSource: the code may change so that a bug no longer fits, or a test may get another
// name. Then the list would promise proofs that no longer exist.
func TestBugsFitTheSource(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, b := range all(t) {
		if seen[b.name] {
			t.Errorf("%q is listed twice", b.name)
		}
		seen[b.name] = true
		files, err := b.apply(root)
		if err != nil {
			t.Errorf("%q: %v", b.name, err)
		}
		for name, text := range files {
			if filepath.Ext(name) != ".go" {
				continue
			}
			if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil {
				t.Errorf("%q: %v", b.name, err)
			}
		}
		for _, by := range b.caught {
			for name := range strings.SplitSeq(by.test, "|") {
				if !hasTest(t, by.pkg, name) {
					t.Errorf("%q: %s has no test %s", b.name, by.pkg, name)
				}
			}
		}
	}
	if len(seen) < 70 {
		t.Errorf("%d bugs: the list was cut off", len(seen))
	}
}

func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(text) {
			return true
		}
	}
	return false
}

func TestApply(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("one\ntwo\nthree\ntwo and a half\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ edits, want, err string }{
		"a line is replaced":     {"@ a.go\n-two\n+2", "one\n2\nthree\ntwo and a half\n", ""},
		"the first line":         {"@ a.go\n-one\n two", "two\nthree\ntwo and a half\n", ""},
		"two edits of one file":  {"@ a.go\n-one\n@ a.go\n three\n+four", "two\nthree\nfour\ntwo and a half\n", ""},
		"the line is not there":  {"@ a.go\n-five", "", "0 times"},
		"a part of a line":       {"@ a.go\n-two and", "", "0 times"},
		"an edit without before": {"@ a.go\n+six", "", "times, not once"},
		"a file is not there":    {"@ b.go\n-one", "", "b.go"},
		"a line without a mark":  {"@ a.go\none", "", "begins with"},
		"an edit without a file": {"-one", "", "the name of a test"},
		"a second test":          {"pkg2 TestIt\n@ a.go\n-two\n+2", "one\n2\nthree\ntwo and a half\n", ""},
		"a bug without an edit":  {"pkg2 TestIt", "", "and an edit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			some, err := parse("# a comment\n\n== a bug\nA1: it breaks\npkg TestIt\n" + c.edits + "\n")
			var files map[string]string
			if err == nil {
				files, err = some[0].apply(dir)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || files["a.go"] != c.want {
				t.Fatalf("%q, %v; want %q", files["a.go"], err, c.want)
			}
		})
	}
}
