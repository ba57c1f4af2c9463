package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// data is the result of a read, for every format.
type data struct {
	whole any                                // json, yaml
	items []any                              // jsonl; nil: whole on one line
	table func(w io.Writer, wide bool) error // table, wide
	names []string                           // name
}

// outputFlag adds -o to a read.
func (a *app) outputFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "table, wide, json, jsonl, yaml or name")
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var out []string
		for _, f := range view.Formats() {
			out = append(out, string(f))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(view.Formats(), view.Format(a.output)) {
			return fault.New(fault.Usage, "-o %s is not a format, want table, wide, json, jsonl, yaml or name", a.output)
		}
		return run(cmd, args)
	}
	return cmd
}

// print writes d in the requested format.
func (a *app) print(d data) error {
	switch view.Format(a.output) {
	case view.JSONFormat:
		if a.watching != nil {
			return view.JSONLine(a.Out, d.whole)
		}
		return view.JSON(a.Out, d.whole)
	case view.YAMLFormat:
		return writeYAML(a.Out, d.whole)
	case view.JSONLFormat:
		if d.items == nil {
			return view.JSONLine(a.Out, d.whole)
		}
		for _, item := range d.items {
			if err := view.JSONLine(a.Out, item); err != nil {
				return err
			}
		}
		return nil
	case view.NameFormat:
		for _, name := range d.names {
			if _, err := fmt.Fprintln(a.Out, view.Line(name)); err != nil {
				return err
			}
		}
		return nil
	}
	if view.Format(a.output) == view.WideFormat {
		return d.table(a.Out, true)
	}
	return d.table(view.Screen{Writer: a.Out, Columns: a.columns()}, false)
}

// columns returns the width of the terminal that tables are written to; 0 means unlimited. COLUMNS sets
// the width for output that is not a terminal.
func (a *app) columns() int {
	if n, err := strconv.Atoi(a.environ("COLUMNS")); err == nil && n >= narrowest {
		return n
	}
	if a.watching != nil {
		return a.watching.columns()
	}
	return terminal.SizeOf(a.Out).Columns
}

// narrowest is the smallest width that tables adapt to.
const narrowest = 40

// list returns the data of a list.
func list[T any](items []T, name func(T) string, table func(wide bool) *view.Table) data {
	d := data{items: []any{}, table: func(w io.Writer, wide bool) error { return table(wide).Write(w) }}
	if items == nil {
		items = []T{}
	}
	d.whole = items
	for _, item := range items {
		d.items = append(d.items, item)
		d.names = append(d.names, name(item))
	}
	return d
}

// writeYAML writes the YAML form of v's JSON.
func writeYAML(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	out, err := yaml.JSONToYAML(text)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = w.Write(out)
	return err
}
