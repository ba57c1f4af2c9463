package house

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Exported names are made of words that a newcomer knows: terms of docs/glossary.md, each in its one meaning, and plain
// English, which is in testdata/words.txt. Both lists are edited by hand, so that a new word is a decision.

// retired words had many meanings here or needed their author, each with what to say instead. To use one again, give it
// one meaning in the glossary.
var retired = map[string]string{
	"ask":      "request or query",
	"bury":     "delete",
	"courier":  "send or deliver",
	"flight":   "sent and not answered",
	"fly":      "send",
	"foreign":  "other, or whose it is",
	"grave":    "tombstone",
	"hand":     "pass, give or return",
	"herald":   "notify",
	"judge":    "check, compare or decide",
	"look":     "read or find",
	"lot":      "batch",
	"lull":     "idle",
	"news":     "change or event",
	"patience": "timeout",
	"raze":     "delete",
	"say":      "report, print or return",
	"stranger": "other, or whose it is",
	"tell":     "report or notify",
	"told":     "reported or notified",
	"trouble":  "error or problem",
	"turn":     "lock, order or round",
	"wind":     "what it does",
	"witness":  "observe, or evidence",
}

// TestVocabulary: every word of an exported name is a term of the glossary or plain English.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	v := newVocabulary(t)
	for pkg, p := range list(t) {
		if p.Name == "main" {
			continue
		}
		for _, id := range exported(t, p) {
			for _, word := range words(id.name) {
				if why := v.unknown(word); why != "" {
					t.Errorf("%s: %s.%s has the word %q, %s", id.at, pkg, id.name, word, why)
				}
			}
		}
	}
}

// TestRetiredWords: no declared name has a retired word, be it exported or not, in a test or a local variable. Names that
// the language of a test script, a command or the standard library gives are in permitted.
func TestRetiredWords(t *testing.T) {
	t.Parallel()
	v := newVocabulary(t)
	found := 0
	eachFile(t, func(_ string, fset *token.FileSet, file *ast.File) {
		for _, id := range declared(fset, file, true) {
			found++
			for i, word := range words(id.name) {
				instead := v.instead[word]
				if instead == "" || v.terms[word] || permitted[id.name] || i > 0 && word == "flight" || handOver.MatchString(id.name) {
					continue
				}
				t.Errorf("%s: %s has the word %q, which had many meanings here: say %s", id.at, id.name, word, instead)
			}
		}
	})
	if found < 20000 {
		t.Fatalf("%d names were found", found)
	}
}

// handOver finds the term hand-over in a name.
var handOver = regexp.MustCompile(`[hH]ands?Over`)

// permitted are names with a retired word in its plain English sense.
var permitted = map[string]bool{
	"lookupUser": true, "lookupGroup": true, // of the operating system
	"looksSick": true, "looksDead": true, // look like
}

// TestVocabularyFinds: the check finds retired and unknown words in every form, and no others.
func TestVocabularyFinds(t *testing.T) {
	t.Parallel()
	v := newVocabulary(t)
	for name, want := range map[string]string{
		"SettledShards": "", "MaxShardIDs": "", "IDsOfShard2": "", "HTTPServer": "", "SQLiteURL": "", "Withdrawing": "withdrawing",
		"JudgedShard": "judged", "ToldOf": "told", "ShardGraves": "graves", "TheLulls": "lulls", "TurningIDs": "turning",
		"NewShardFrobnicator": "frobnicator", "ZZZShard": "zzz",
	} {
		got := ""
		for _, word := range words(name) {
			if v.unknown(word) != "" {
				got = cmp.Or(got, word)
			}
		}
		if got != want {
			t.Errorf("%s: the check finds %q, want %q", name, got, want)
		}
	}
}

// vocabulary holds the known words and the retired ones, in every form.
type vocabulary struct {
	terms, plain map[string]bool
	instead      map[string]string
}

func newVocabulary(t *testing.T) *vocabulary {
	t.Helper()
	v := &vocabulary{terms: map[string]bool{}, plain: map[string]bool{}, instead: map[string]string{}}
	for _, term := range glossary(t) {
		for _, form := range forms(term) {
			v.terms[form] = true
		}
	}
	for _, word := range plainWords(t) {
		for _, form := range forms(word) {
			v.plain[form] = true
		}
	}
	for word, instead := range retired {
		for _, form := range forms(word) {
			v.instead[form] = instead
		}
	}
	return v
}

// unknown says what is wrong with a word and what to do, or "".
func (v *vocabulary) unknown(word string) string {
	switch instead := v.instead[word]; {
	case v.terms[word]:
		return ""
	case instead != "":
		return "which had many meanings here: say " + instead
	case v.plain[word]:
		return ""
	}
	return "which is neither in docs/glossary.md nor in internal/house/testdata/words.txt: use a term of the glossary; " +
		"or add it there, if it is a new term, with its one meaning; or add it to words.txt, if every newcomer knows it"
}

// forms returns a word with the endings of plurals and verbs.
func forms(word string) []string {
	out := []string{word, word + "s", word + "es", word + "ed", word + "er", word + "ing"}
	if stem, ok := strings.CutSuffix(word, "e"); ok {
		out = append(out, word+"d", word+"r", stem+"ing")
	}
	if stem, ok := strings.CutSuffix(word, "y"); ok {
		out = append(out, stem+"ies", stem+"ied")
	}
	return out
}

var (
	plural = regexp.MustCompile(`([A-Z]{2,})s([^a-z]|$)`)                      // ID|s
	border = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)          // heartbeat|Interval, HTTP|Server
	proper = strings.NewReplacer("SQLite", "Sqlite", "WebSocket", "Websocket") // one word with a capital in it
)

// words splits an identifier into words in lower case.
func words(name string) []string {
	name = plural.ReplaceAllString(proper.Replace(name), "$1 $2")
	name = border.ReplaceAllString(name, "$1$3 $2$4")
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) })
}

var (
	glossaryTerm = regexp.MustCompile(`(?m)^\| ([^|]+) \|`) // the first column of a table
	inPassing    = regexp.MustCompile(`\*([a-z-]+)\*`)      // defined within the meaning of another term
)

// glossary returns the words of the glossary's terms. What has a hyphen there is written with and without it.
func glossary(t *testing.T) (out []string) {
	t.Helper()
	text := read(t, "docs/glossary.md")
	for _, m := range slices.Concat(glossaryTerm.FindAllStringSubmatch(text, -1), inPassing.FindAllStringSubmatch(text, -1)) {
		for _, word := range strings.FieldsFunc(strings.ToLower(m[1]), func(r rune) bool { return r == ' ' || r == ',' }) {
			out = append(append(out, strings.ReplaceAll(word, "-", "")), strings.Split(word, "-")...)
		}
	}
	if len(out) < 100 {
		t.Fatalf("the glossary has %d words", len(out))
	}
	return out
}

// plainWords returns the words of testdata/words.txt.
func plainWords(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "words.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	for i, word := range lines {
		if i > 0 && word <= lines[i-1] {
			t.Errorf("testdata/words.txt: %q is not behind %q: keep the list sorted, one word a line", word, lines[i-1])
		}
	}
	return lines
}

type identifier struct {
	name string
	at   token.Position
}

// exported returns the exported names that a package declares.
func exported(t *testing.T, p listed) (out []identifier) {
	t.Helper()
	for _, name := range p.GoFiles {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(file) { // their names are chosen elsewhere
			out = append(out, declared(fset, file, false)...)
		}
	}
	return slices.DeleteFunc(out, func(id identifier) bool {
		return !token.IsExported(id.name) || len(id.name) == 1 // a type parameter
	})
}

// declared returns the names that a file declares, fields and methods among them, and local variables if locals is set.
func declared(fset *token.FileSet, file *ast.File, locals bool) (out []identifier) {
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			out = append(out, identifier{id.Name, fset.Position(id.Pos())})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
			return locals
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field: // of a struct, an interface, or a parameter
			add(n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(variables(n.Lhs...)...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(variables(n.Key, n.Value)...)
			}
		}
		return true
	})
	return out
}

// variables returns the names among expressions.
func variables(exprs ...ast.Expr) (out []*ast.Ident) {
	for _, e := range exprs {
		if id, is := e.(*ast.Ident); is {
			out = append(out, id)
		}
	}
	return out
}
