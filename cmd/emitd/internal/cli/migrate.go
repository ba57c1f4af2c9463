package cli

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// migration is a version of the schema as it is shown.
type migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt view.Time `json:"applied_at"`
}

func migrationsOf(ms []backend.Migration) []migration {
	out := make([]migration, len(ms))
	for i, m := range ms {
		out[i] = migration{m.Version, m.Name, !m.AppliedAt.IsZero(), view.Time{Time: m.AppliedAt}}
	}
	return out
}

func (a *app) printMigrations(ms []migration) error {
	return a.print(list(ms, func(m migration) string { return strconv.Itoa(m.Version) }, func(bool) *view.Table {
		t := &view.Table{Head: []string{"VERSION", "NAME", "APPLIED"}}
		for _, m := range ms {
			applied := "no"
			if m.Applied {
				applied = m.AppliedAt.UTC().Format("2006-01-02 15:04:05Z")
			}
			t.Add(strconv.Itoa(m.Version), m.Name, applied)
		}
		return t
	}))
}

// schema selects the schema that a command is about: the store's or the outbox's.
type schema struct{ outbox bool }

func (s *schema) flag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&s.outbox, "outbox", false, "the schema of the outbox (outbox.url, else store.url) instead of the cluster store's")
	return cmd
}

type schemaCall func(context.Context, backend.Options) ([]backend.Migration, error)

// of selects the call for the store or the one for the outbox.
func (s *schema) of(store, outbox schemaCall) schemaCall {
	if s.outbox {
		return outbox
	}
	return store
}

func (a *app) migrateCommand() *cobra.Command {
	var of schema
	status := &cobra.Command{
		Use: "status", Short: "List the versions of the store's schema", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withSchema(cmd.Context(), of.of(backend.Status, backend.OutboxStatus), a.printMigrations)
		},
	}
	var dryRun bool
	up := &cobra.Command{
		Use: "up", Short: "Migrate the schema to the version of this program; rows are kept", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dryRun {
				return a.withSchema(cmd.Context(), of.of(backend.Pending, backend.PendingOutbox), a.printMigrations)
			}
			return a.withSchema(cmd.Context(), of.of(backend.Migrate, backend.MigrateOutbox), func(ms []migration) error {
				if len(ms) == 0 {
					a.message("the schema is up to date")
				}
				return a.printMigrations(ms)
			})
		},
	}
	up.Flags().BoolVar(&dryRun, "dry-run", false, "only list the versions that would be applied")
	return group("migrate", "Show the store's schema, and migrate it", of.flag(a.outputFlag(status)), of.flag(a.outputFlag(up)), of.flag(a.migrateGetCommand(&of)))
}

// withSchema runs a call that concerns only the schema, which may be missing.
func (a *app) withSchema(ctx context.Context, do schemaCall, show func([]migration) error) error {
	cfg, err := a.loadToRead()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	ms, err := do(ctx, backend.Options{Config: cfg.Config, Logger: a.commandLog(cfg)})
	if err != nil {
		return err
	}
	return show(migrationsOf(ms))
}

func (a *app) migrateGetCommand(of *schema) *cobra.Command {
	var from int
	var grantsOnly bool
	var roles map[string]string
	get := &cobra.Command{
		Use: "get", Short: "Print the schema as SQL, to apply it by other means",
		Long: "Print the schema as SQL. The store is not contacted: its URL only selects the kind of SQL,\n" +
			"so --store postgres:// or --store sqlite:///x is enough; store.schema and store.prefix are used.\n" +
			"For Postgres the output ends with the rights that the roles of programs need: as comments, or as statements\n" +
			"for the roles of --grant. With --grants-only these are the whole output: apply them again after each migration.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadToRead()
			if err != nil {
				return err
			}
			print := backend.SQL
			if of.outbox {
				print = backend.OutboxSQL
			}
			text, err := print(cfg.Config, from)
			if err != nil {
				return err
			}
			grants, err := backend.Grants(cfg.Config, of.outbox, roles)
			if err != nil {
				return err
			}
			switch {
			case !grantsOnly:
			case from != 0:
				return fault.New(fault.Usage, "--grants-only and --from exclude each other")
			case grants == "":
				return fault.New(fault.Usage, "--grants-only is only for Postgres: this kind of store has no roles")
			default:
				text = ""
			}
			_, err = io.WriteString(a.Out, text+grants)
			return err
		},
	}
	get.Flags().StringToStringVar(&roles, "grant", nil, "role to grant rights to, by its purpose: node=, app= (transactions behind a fence) and reader=ROLE; with --outbox relay=, publisher= and reader=ROLE")
	get.Flags().IntVar(&from, "from", 0, "version that the store has now; 0: an empty store")
	get.Flags().BoolVar(&grantsOnly, "grants-only", false, "print only the rights of roles, for a store whose tables are there")
	return get
}
