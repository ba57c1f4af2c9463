package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/emitd/emitd/internal/reference"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

func testRoot() *cobra.Command {
	a := &app{Streams: Streams{Out: io.Discard, Err: io.Discard}}
	return a.root()
}

func TestReference(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	root := testRoot()
	b.WriteString("## Flags of every command\n\n")
	flags(&b, root.PersistentFlags())
	walk(root, func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if c.HasSubCommands() {
			if own := c.PersistentFlags(); c != root && own.HasFlags() {
				fmt.Fprintf(&b, "\n## Flags of every %s command\n\n", c.CommandPath())
				flags(&b, own)
			}
			return
		}
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", c.UseLine(), strings.ReplaceAll(text, "\n", " "))
		flags(&b, c.LocalNonPersistentFlags())
	})
	reference.Check(t, "../../../../docs/reference/cli.md", b.String(), *update)
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

func flags(b *strings.Builder, fs *pflag.FlagSet) {
	head := "| flag | what it is |\n|---|---|\n"
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		usage := f.Usage
		// The text mentions zero defaults if they matter, and the actor differs from machine to machine.
		if !slices.Contains([]string{"", "0", "0s", "false", "[]", actor()}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "%s| %s | %s |\n", head, name, reference.Cell(usage))
		head = ""
	})
}

// TestEveryReadHasFormats checks that a command that shows data takes -o. The exceptions are listed here.
func TestEveryReadHasFormats(t *testing.T) {
	t.Parallel()
	without := map[string]bool{"emitd serve": true, "emitd dev": true, "emitd migrate get": true, "emitd top": true, "emitd debug bundle": true, "emitd man": true, "emitd check": true}
	walk(testRoot(), func(c *cobra.Command) {
		if c.HasSubCommands() || c.Hidden {
			return
		}
		format := c.Flags().ShorthandLookup("o")
		if has := format != nil && format.Name == "output"; has == without[c.CommandPath()] {
			t.Errorf("%s: -o is there: %v", c.CommandPath(), has)
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short text %q", c.CommandPath(), c.Short)
		}
	})
}

// TestRunbookCommands checks that the commands which the page on alerts names exist, with their flags.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/how-to/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("`emitd ([^`]+)`").FindAllStringSubmatch(strings.ReplaceAll(string(page), "\n", " "), -1)
	if len(found) < 15 {
		t.Fatalf("only %d commands were found: this test looks in the wrong place", len(found))
	}
	for _, m := range found {
		c, rest, err := testRoot().Find(strings.Fields(m[1]))
		if err != nil || c.HasSubCommands() {
			t.Errorf("emitd %s: no such command: %v", m[1], err)
			continue
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("emitd %s: %v", m[1], err)
		} else if err := c.ValidateArgs(c.Flags().Args()); err != nil {
			t.Errorf("emitd %s: %v", m[1], err)
		}
	}
}
