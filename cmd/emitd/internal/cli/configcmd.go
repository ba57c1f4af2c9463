package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

func (a *app) configCommand() *cobra.Command {
	var origin bool
	show := &cobra.Command{
		Use: "show", Short: "Show every effective setting, without secrets", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.node.address != "" {
				return a.printNodeSettings(cmd.Context(), origin)
			}
			cfg, err := a.load(a.input())
			if err != nil {
				return err
			}
			return a.printSettings(cfg.Settings(), origin)
		},
	}
	show.Flags().BoolVar(&origin, "origin", false, "also show where each value comes from and what it overrides")
	check := &cobra.Command{
		Use: "check", Short: "Validate the configuration, and the files and commands it names, without starting anything", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in := a.input()
			in.Serving, in.Dev = true, true // reported below: checks run where the store may be unknown
			cfg, err := a.load(in)
			if err == nil {
				err = slices.Concat(host.Check(cfg), checkSinks(cmd.Context(), cfg)).Err()
			}
			if err != nil {
				return err
			}
			return a.printCheck(cfg)
		},
	}
	return group("config", "Show and check the configuration", a.addrFlags(a.outputFlag(show)), a.outputFlag(check))
}

// checkSinks validates settings that only the sinks can check.
func checkSinks(ctx context.Context, cfg *config.Loaded) fault.List {
	var bad fault.List
	for i, s := range cfg.Outbox.Subscriptions {
		if err := sinks.Check(ctx, s.Sink.Settings); err != nil {
			bad = append(bad, fault.New(fault.BadOutbox, "subscription %s (%s): %w", s.Name, cfg.OriginOf(fmt.Sprintf("outbox.subscriptions[%d]", i)), err))
		}
	}
	return bad
}

// printNodeSettings shows the settings of a node.
func (a *app) printNodeSettings(ctx context.Context, origin bool) error {
	node, err := a.remote()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var answer struct {
		Settings []config.Setting `json:"settings"`
	}
	if err := node.get(ctx, "/settings", nil, &answer); err != nil {
		return err
	}
	return a.printSettings(answer.Settings, origin)
}

func (a *app) printSettings(settings []config.Setting, origin bool) error {
	return a.print(list(settings, func(s config.Setting) string { return s.Key }, func(wide bool) *view.Table {
		t := &view.Table{Head: []string{"KEY", "VALUE"}}
		if origin || wide {
			t.Head = append(t.Head, "ORIGIN")
		}
		for _, s := range settings {
			row := []string{s.Key, s.Value}
			if origin || wide {
				row = append(row, originCell(s))
			}
			t.Add(row...)
		}
		return t
	}))
}

func originCell(s config.Setting) string {
	cell := s.Origin
	for _, o := range s.Overrides {
		cell += fmt.Sprintf(" (%s says %s)", o, o.Text)
	}
	if s.Note != "" {
		cell += " (" + s.Note + ")"
	}
	return cell
}

// checked is the result of config check.
type checked struct {
	OK    bool     `json:"ok"`
	File  string   `json:"file"`
	Set   int      `json:"set"` // settings that are not defaults
	Notes []string `json:"notes"`
}

func (a *app) printCheck(cfg *config.Loaded) error {
	c := checked{OK: true, File: cfg.File, Notes: append([]string{}, cfg.Notes()...)}
	for _, s := range cfg.Settings() {
		if !strings.HasPrefix(s.Origin, string(config.FromDefault)) {
			c.Set++
		}
	}
	if note := host.TokensReadable(cfg.API.TokensFile); note != "" {
		c.Notes = append(c.Notes, note)
	}
	if cfg.Store.URL == "" {
		c.Notes = append(c.Notes, "store.url is not set: emitd serve requires it")
	}
	return a.print(data{whole: c, names: []string{c.File}, table: func(w io.Writer, _ bool) error {
		file := c.File
		if file == "" {
			file = "no file"
		}
		fmt.Fprintf(w, "ok: %s, %d settings differ from their defaults, profile %s\n", file, c.Set, cfg.Profile)
		for _, n := range c.Notes {
			fmt.Fprintf(w, "note: %s\n", view.Line(n))
		}
		return nil
	}})
}

func (a *app) errorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "error [CODE]", Short: "Explain an error code; without one, list all",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.printError(args[0])
			}
			all := fault.All()
			return a.print(list(all, func(e fault.Entry) string { return string(e.Code) }, func(bool) *view.Table {
				t := &view.Table{Head: []string{"CODE", "EXIT", "TITLE"}}
				for _, e := range all {
					t.Add(string(e.Code), fmt.Sprint(e.Exit), e.Title)
				}
				return t
			}))
		},
	}
	return a.outputFlag(cmd)
}

func (a *app) printError(code string) error {
	code = strings.ToUpper(code)
	if !strings.HasPrefix(code, "E") {
		code = "E" + code
	}
	e, ok := fault.Lookup(fault.Code(code))
	if !ok {
		return fault.New(fault.Usage, "there is no error code %q", code).Hint("list all: emitd error")
	}
	return a.print(data{whole: e, names: []string{code}, table: func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "%s %s (exit code %d)\n%s\ndo: %s\n", e.Code, e.Title, e.Exit, e.Means, e.Do)
		return err
	}})
}
