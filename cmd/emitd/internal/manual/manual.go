// Package manual writes man pages of a tree of commands, from the texts that --help shows.
package manual

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is a man page.
type Page struct {
	Name string // of the file, such as emitd-node-ls.1
	Text string // in roff, with the man macros
}

// Info is what pages say beside the texts of the commands.
type Info struct {
	Version string
	// Sections are further sections of the first page: a title and its text, in which an empty line begins a
	// paragraph, and lines with a tab have a term before it and its explanation behind it.
	Sections [][2]string
}

// Pages returns the pages of a command and of all commands below it that help shows.
func Pages(root *cobra.Command, about Info) []Page {
	out := []Page{{name(root) + ".1", page(root, about)}}
	for _, c := range below(root) {
		out = append(out, Pages(c, Info{Version: about.Version})...)
	}
	return out
}

// below returns the commands that help shows.
func below(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands()), func(c *cobra.Command) bool {
		return c.Hidden || !c.IsAvailableCommand() || c.Name() == "help"
	})
}

func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func page(c *cobra.Command, about Info) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" %s \"emitd manual\"\n", quoted(strings.ToUpper(name(c))), quoted("emitd "+about.Version))
	b.WriteString(".nh\n.ad l\n") // no hyphens in names, no stretched lines
	section(&b, "NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", escaped(name(c)), escaped(c.Short))
	section(&b, "SYNOPSIS")
	use := strings.TrimSuffix(c.UseLine(), " [flags]")
	if c.HasSubCommands() {
		use = c.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(&b, ".B %s\n[\\fIflags\\fP]\n", escaped(use))
	section(&b, "DESCRIPTION")
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	paragraphs(&b, text)
	if subs := below(c); len(subs) > 0 {
		section(&b, "COMMANDS")
		for _, s := range subs {
			term(&b, `\fB`+escaped(s.CommandPath())+`\fP`, s.Short)
		}
	}
	flags(&b, "OPTIONS", c.LocalNonPersistentFlags())
	flags(&b, "OPTIONS OF EVERY COMMAND", ofAll(c))
	for _, s := range about.Sections {
		section(&b, s[0])
		paragraphs(&b, s[1])
	}
	also(&b, c)
	return b.String()
}

// ofAll returns the flags that a command shares with the commands below it.
func ofAll(c *cobra.Command) *pflag.FlagSet {
	if c.HasSubCommands() {
		return c.PersistentFlags()
	}
	return pflag.NewFlagSet("none", pflag.ContinueOnError)
}

// also refers to the pages above and below.
func also(b *strings.Builder, c *cobra.Command) {
	var names []string
	c.VisitParents(func(p *cobra.Command) { names = append(names, name(p)) })
	slices.Reverse(names)
	for _, s := range below(c) {
		names = append(names, name(s))
	}
	if len(names) == 0 {
		return
	}
	section(b, "SEE ALSO")
	for i, n := range names {
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		fmt.Fprintf(b, ".BR %s (1)%s\n", escaped(n), comma)
	}
}

func section(b *strings.Builder, title string) { fmt.Fprintf(b, ".SH %s\n", quoted(title)) }

// term writes a term with its explanation below it.
func term(b *strings.Builder, name, text string) {
	fmt.Fprintf(b, ".TP\n%s\n%s\n", name, escaped(text))
}

// paragraphs writes a text.
func paragraphs(b *strings.Builder, text string) {
	for i, p := range strings.Split(text, "\n\n") {
		if i > 0 && !strings.Contains(p, "\t") {
			b.WriteString(".PP\n")
		}
		for line := range strings.SplitSeq(p, "\n") {
			if name, text, is := strings.Cut(line, "\t"); is {
				term(b, `\fB`+escaped(name)+`\fP`, text)
				continue
			}
			b.WriteString(escaped(line) + "\n")
		}
	}
}

// flags writes a section with flags, if there are any to show.
func flags(b *strings.Builder, title string, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if title != "" {
			section(b, title)
			title = ""
		}
		name := `\fB` + escaped("--"+f.Name) + `\fP`
		if f.Shorthand != "" {
			name = `\fB` + escaped("-"+f.Shorthand) + `\fP, ` + name
		}
		kind, text := pflag.UnquoteUsage(f)
		if kind != "" {
			name += ` \fI` + escaped(kind) + `\fP`
		}
		if !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) && f.Name != "actor" {
			text += " (default " + f.DefValue + ")"
		}
		term(b, name, text)
	})
}

// escaped makes a text mean itself in roff.
func escaped(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case i == 0 && (r == '.' || r == '\''): // the beginning of a request
			b.WriteString(`\&` + string(r))
		case r > '~':
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// quoted makes a text one argument of a macro.
func quoted(text string) string { return `"` + strings.ReplaceAll(escaped(text), `"`, `\(dq`) + `"` }
