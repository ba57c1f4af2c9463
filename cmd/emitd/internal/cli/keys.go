package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// keysCommand makes the commands for the keys of keyed daemons.
func (a *app) keysCommand() *cobra.Command {
	var all bool
	ls := &cobra.Command{
		Use: "ls DAEMON", Short: "List the units of a keyed daemon", Args: exactly(1, "the ID of a daemon, such as acme:tenants"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd.Context(), all, func(ctx context.Context, c *cluster) error {
				s := c.scheduled(ctx)
				s.Daemons = slices.DeleteFunc(slices.Clone(s.Daemons), func(u view.Unit) bool { return string(u.Daemon) != args[0] || u.Unit.Key == "" })
				return a.print(list(s.Daemons, func(u view.Unit) string { return u.Unit.Key }, s.UnitTable))
			})
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "also show keys that were removed a while ago")
	return group("keys", "Show, add and remove the keys of a keyed daemon", a.addrFlags(a.watchFlags(a.outputFlag(ls))),
		a.changeKeysCommand("add", "Add keys: each gets a unit, which runs on some node",
			func(c *view.KeyChange, keys []string) { c.Add = keys }),
		a.changeKeysCommand("remove", "Remove keys: their units finish the work in flight and end",
			func(c *view.KeyChange, keys []string) { c.Remove = keys }),
		a.changeKeysCommand("set", "Make the keys exactly these: add what is missing, remove the rest", nil),
	)
}

// changeKeysCommand makes a command that changes keys: by apply, or all of them if that is nil.
func (a *app) changeKeysCommand(verb, short string, apply func(*view.KeyChange, []string)) *cobra.Command {
	var c view.KeyChange
	var dryRun, allowEmpty bool
	cmd := &cobra.Command{
		Use: verb + " DAEMON KEY…", Short: short,
		Long: short + ".\n\nA key has 1 to 256 bytes of printable text. The key - reads further keys from the standard input, one on each line.\n" +
			"More than 1,000 keys are changed in several steps. A change that was interrupted may be repeated: what is there\n" +
			"already, or gone, is left as it is.",
		Args: atLeast(2, "the ID of a daemon and keys"),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := a.readKeys(args[1:])
			if err != nil {
				return err
			}
			if apply == nil && len(keys) == 0 && !allowEmpty { // what made the list has failed, more often than not
				return fault.New(fault.BadKeys, "there is no key on the standard input, so all keys of %s would be removed; nothing was changed", args[0]).
					Hint("add --allow-empty if %s is to have no key", args[0])
			}
			c.Daemon, c.Actor = daemon.ID(args[0]), cmp.Or(c.Actor, actor())
			return a.withCluster(cmd.Context(), true, func(ctx context.Context, in *cluster) error {
				counts, err := a.changeKeys(ctx, in, c, keys, apply, dryRun)
				if err != nil {
					return err
				}
				return a.printKeyCounts(c.Daemon, counts, dryRun)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&c.Reason, "reason", "", "reason, shown in the history")
	fl.StringVar(&c.Actor, "actor", "", "who asks, shown in the history; by default the user of this process")
	fl.BoolVar(&c.WithoutSpec, "undeclared", false, "also if no node declares the daemon yet")
	if apply == nil {
		fl.BoolVar(&dryRun, "dry-run", false, "only show how many keys would be added and removed")
		fl.BoolVar(&allowEmpty, "allow-empty", false, "remove all keys if the standard input has none, instead of refusing")
	}
	return a.outputFlag(cmd)
}

// changeKeys checks and changes keys, in as many steps as are needed.
func (a *app) changeKeys(ctx context.Context, in *cluster, c view.KeyChange, keys []string, apply func(*view.KeyChange, []string), dryRun bool) (storage.KeyCounts, error) {
	store, ok := in.store.Store.(storage.KeyStore)
	change, err := c.Check(in.snap)
	if err != nil {
		return storage.KeyCounts{}, err
	}
	for _, key := range keys {
		if err := daemon.ValidateKey(key); err != nil { // before any step
			return storage.KeyCounts{}, fault.New(fault.BadKeys, "%w; nothing was changed", err)
		}
	}
	switch {
	case !ok:
		return storage.KeyCounts{}, fault.New(fault.Usage, "this store keeps no keys")
	case dryRun:
		return difference(storage.Keys(in.snap, c.Daemon), keys), nil
	case apply == nil:
		return storage.ReplaceKeys(ctx, in.store.Store, change, keys)
	}
	var all storage.KeyCounts
	for part := range slices.Chunk(keys, storage.MaxKeyChanges) {
		apply(&c, part)
		if change, err = c.Check(in.snap); err != nil {
			return all, err
		}
		counts, err := store.ChangeKeys(ctx, change)
		all.Added, all.Removed = all.Added+counts.Added, all.Removed+counts.Removed
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// difference counts what would be added and removed.
func difference(have, want []string) (n storage.KeyCounts) {
	for _, key := range want {
		if !slices.Contains(have, key) {
			n.Added++
		}
	}
	for _, key := range have {
		if !slices.Contains(want, key) {
			n.Removed++
		}
	}
	return n
}

// readKeys returns the keys of the command line, and those of the standard input in place of -.
func (a *app) readKeys(args []string) ([]string, error) {
	var out []string
	for _, arg := range args {
		if arg != "-" {
			out = append(out, arg)
			continue
		}
		lines := bufio.NewScanner(a.In)
		lines.Buffer(nil, 2<<20)
		for lines.Scan() {
			if text := strings.TrimSuffix(lines.Text(), "\r"); text != "" {
				out = append(out, text)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fault.New(fault.Usage, "read keys from the standard input: %w; nothing was changed", err)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// keyCounts is what a change of keys has changed.
type keyCounts struct {
	Daemon  daemon.ID `json:"daemon"`
	Added   int       `json:"added"`
	Removed int       `json:"removed"`
	DryRun  bool      `json:"dry_run,omitempty"`
}

func (a *app) printKeyCounts(id daemon.ID, n storage.KeyCounts, dryRun bool) error {
	return a.print(data{whole: keyCounts{id, n.Added, n.Removed, dryRun}, names: []string{string(id)}, table: func(w io.Writer, _ bool) error {
		would := ""
		if dryRun {
			would = "would be "
		}
		_, err := fmt.Fprintf(w, "%s: %s%d added, %d removed\n", view.Line(string(id)), would, n.Added, n.Removed)
		return err
	}})
}

// owner says which node owns a unit.
type owner struct {
	Unit       daemon.Unit  `json:"unit"`
	State      daemon.State `json:"state"`
	Node       string       `json:"node"`    // empty if no node owns it now
	Address    string       `json:"address"` // that the node advertises
	Generation int64        `json:"generation"`
}

// ownerCommand makes the command that shows which node owns a unit.
func (a *app) ownerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "owner UNIT", Short: "Show which node owns a unit, and its address",
		Long: "Show which node owns a unit, and the address that the node advertises, so that a request can be sent there. The\n" +
			"answer may be out of date when it is used: the fence decides, so the node must check it.",
		Args: exactly(1, "a unit, such as acme:tenants~globex or acme:reports/0"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd.Context(), false, func(_ context.Context, c *cluster) error {
				s := c.status()
				units := find(s.Daemons, args[0])
				if len(units) == 0 {
					return noDaemon(s, args[0])
				}
				if len(units) > 1 || units[0].Unit.String() != args[0] {
					return fault.New(fault.Usage, "%s is a daemon: name one of its units, such as %s", args[0], units[0].Unit)
				}
				u := units[0]
				o := owner{Unit: u.Unit, State: u.State, Node: u.Node, Generation: u.Generation}
				for _, n := range s.Nodes {
					if n.ID == u.NodeID && u.Node != "" {
						o.Address = n.Address
					}
				}
				return a.print(data{whole: o, names: []string{o.Node}, table: func(w io.Writer, _ bool) error {
					t := &view.Table{Head: []string{"UNIT", "STATE", "NODE", "ADDRESS", "GENERATION"}}
					t.Add(o.Unit.String(), string(o.State), o.Node, o.Address, fmt.Sprint(o.Generation))
					return t.Write(w)
				}})
			})
		},
	}
	a.complete(cmd, unitNames)
	return a.addrFlags(a.watchFlags(a.outputFlag(cmd)))
}
