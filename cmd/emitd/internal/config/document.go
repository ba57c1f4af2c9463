package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/emitd/emitd/internal/admin/fault"
)

// document is a YAML text with its name, for positions. It hides what looks secret in the lines that it
// shows.
type document struct {
	name    string
	lines   []string
	root    ast.Node
	anchors map[string]ast.Node
	secrets []string
	hidden  []int // for each line, the column from which it is not shown
	private bool  // no line is shown
}

// pos is a position in a document. The zero place means no position.
type pos struct {
	doc          *document
	line, column int
}

func (p pos) String() string { return fmt.Sprintf("%s:%d:%d", p.doc.name, p.line, p.column) }

// parse parses text as one YAML document. A nil document with a nil error is an empty one. A private
// text, such as a variable, may be a secret as a whole.
func parse(name, text string, private bool) (doc *document, err error) {
	doc = &document{name: name, lines: strings.Split(text, "\n"), anchors: map[string]ast.Node{}, private: private}
	doc.findSecrets()
	defer func() {
		if p := recover(); p != nil { // a panic of the parser is reported as a mistake in the file
			err = fault.New(fault.ConfigSyntax, "%s: not valid YAML: %s", name, doc.hide(fmt.Sprint(p)))
			doc = nil
		}
	}()
	file, err := parser.ParseBytes([]byte(text), 0)
	if err != nil {
		return nil, doc.syntax(err)
	}
	for _, d := range file.Docs {
		switch {
		case d.Body == nil:
		case doc.root != nil:
			return nil, doc.fault(fault.ConfigSyntax, at(doc, d.Body), "more than one YAML document; only one is read", "")
		default:
			doc.root = d.Body
		}
	}
	if doc.root == nil {
		return nil, nil
	}
	ast.Walk(secretFinder{doc}, doc.root)
	return doc, nil
}

func (d *document) syntax(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil {
		return fault.New(fault.ConfigSyntax, "%s: not valid YAML: %s", d.name, d.hide(firstLine(err.Error())))
	}
	return d.fault(fault.ConfigSyntax, atToken(d, e.GetToken()), "not valid YAML: "+firstLine(e.GetMessage()), "")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// at returns where a node begins. The token of a block mapping is the colon of its first entry, so the
// position of the first key is used instead.
func at(doc *document, n ast.Node) pos {
	switch m := n.(type) {
	case *ast.MappingNode:
		if len(m.Values) > 0 && !m.IsFlowStyle {
			return at(doc, m.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return at(doc, m.Key)
	}
	return atToken(doc, n.GetToken())
}

func atToken(doc *document, t *token.Token) pos {
	if t == nil || t.Position == nil {
		return pos{doc, 1, 1}
	}
	return pos{doc, t.Position.Line, t.Position.Column}
}

// fault makes a fault that shows the place, with the remark under the caret.
func (d *document) fault(code fault.Code, p pos, what, remark string) *fault.Fault {
	f := fault.New(code, "%s: %s", p, d.hide(what))
	if d.private {
		f.Why = remark
		return f
	}
	f.Excerpt = d.excerpt(p, remark)
	return f
}

// excerpt returns the line of the place, the line before it, and a caret.
func (d *document) excerpt(p pos, remark string) string {
	if p.line < 1 || p.line > len(d.lines) {
		return ""
	}
	var b strings.Builder
	number := strconv.Itoa(p.line)
	if p.line > 1 && strings.TrimSpace(d.lines[p.line-2]) != "" {
		fmt.Fprintf(&b, "    %*d | %s\n", len(number), p.line-1, d.show(p.line-1))
	}
	fmt.Fprintf(&b, "  > %s | %s\n", number, d.show(p.line))
	column := min(max(p.column, 1), widest)
	fmt.Fprintf(&b, "%*s^ %s", len("  > ")+len(number)+len(" | ")+column-1, "", remark)
	return strings.TrimRight(b.String(), " ")
}

// widest bounds how much of a line is shown.
const widest = 160

func (d *document) show(line int) string {
	source := d.lines[line-1]
	if at := d.hidden[line-1]; at < len(source) {
		if source = source[:at] + " ***"; strings.TrimSpace(source[:at]) == "" {
			source = source[:at] + "***"
		}
	}
	text := []rune(strings.Map(printable, d.hide(source)))
	if len(text) > widest {
		text = append(text[:widest], '…')
	}
	return string(text)
}

// printable replaces the file's control characters, which must not reach the terminal.
func printable(r rune) rune {
	if r == '\t' || r == '\r' {
		return ' '
	}
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

var (
	urlPassword = regexp.MustCompile(`(://[^/\s:@"']*:)[^/\s"']*@`)
	namedSecret = regexp.MustCompile(`(?i)((?:password|passwd|secret|token|api[_-]?key)["']?\s*[:=]\s*)[^\s&,}]+`)
)

// hide replaces what is known to be secret or looks like it.
func (d *document) hide(text string) string { return Hide(fault.Redact(text, d.secrets...)) }

// Hide replaces what looks like a password in text: in URLs and after words such as password=.
func Hide(text string) string {
	text = urlPassword.ReplaceAllString(text, "${1}***@")
	return namedSecret.ReplaceAllString(text, "${1}***")
}

// secretKeys are the keys whose values are or may be secret as a whole: the environment of an exec
// daemon, the credentials of a sink.
var secretKeys = []string{"env", "secrets", "headers", "password", "token", "access_key", "secret_key"}

// secretFinder collects the values of secretKeys, because an excerpt may show their lines.
type secretFinder struct{ doc *document }

func (s secretFinder) Visit(n ast.Node) ast.Visitor {
	pair, ok := n.(*ast.MappingValueNode)
	if ok && pair.Key.GetToken() != nil && slices.Contains(secretKeys, pair.Key.GetToken().Value) {
		ast.Walk(secretScalars(s), pair.Value)
	}
	return s
}

type secretScalars struct{ doc *document }

func (s secretScalars) Visit(n ast.Node) ast.Visitor {
	if pair, ok := n.(*ast.MappingValueNode); ok {
		ast.Walk(s, pair.Value)
		return nil
	}
	if t := n.GetToken(); t != nil && isScalar(n) && len(t.Value) >= shortestSecret {
		s.doc.secrets = append(s.doc.secrets, t.Value)
	}
	return s
}

// shortestSecret keeps words such as "no" from being replaced everywhere.
const shortestSecret = 4

func isScalar(n ast.Node) bool {
	_, ok := n.(ast.ScalarNode)
	return ok
}
