package cli

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/internal/admin/fault"
)

func (a *app) serveCommand() *cobra.Command {
	policy := string(backend.Auto)
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a node until interrupted",
		Long: "Run a node: it joins the cluster of its store, may be elected leader, and runs the daemons assigned\n" +
			"to it. SIGTERM or Ctrl-C hands all units over and ends the node with exit code 0. A second signal forces the\n" +
			"end if it comes at least a second later; one that comes earlier counts as a repetition of the first.\n" +
			"SIGHUP reloads the log level, the tokens and the certificates.\n\n" +
			"If the store cannot be reached at the start (down, starting, cut off), the node waits: /livez answers ok,\n" +
			"/readyz shows the reason, and the log has a line each minute. With --store.wait=false the node ends at once\n" +
			"with exit code 4. A mistake, such as a wrong password, always ends it.\n\n" +
			"Every key of the configuration is also a flag, such as --coordinator.lease-duration 30s; they are in\n" +
			"emitd config show and docs/reference/config.md.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch backend.Policy(policy) {
			case backend.Auto, backend.Always, backend.Never:
			default:
				return fault.New(fault.Usage, "--migrate=%s is not known, want auto, always or never", policy)
			}
			return a.serve(cmd.Context(), backend.Policy(policy))
		},
	}
	cmd.Flags().StringVar(&policy, "migrate", policy, "auto: create the schema in an empty store, and migrate a SQLite file; always: also migrate Postgres; never: neither")
	cmd.Flags().Lookup("migrate").NoOptDefVal = string(backend.Always)
	return cmd
}

func (a *app) serve(ctx context.Context, p backend.Policy) error {
	in := a.input()
	in.Serving = true
	cfg, err := a.load(in)
	if err != nil {
		return err
	}
	level := telemetry.Level(cfg.Telemetry.Log.Level)
	reload, stop := hangups(ctx, func() (*config.Loaded, error) { return config.Load(in) })
	defer stop()
	return host.Run(ctx, host.Options{
		Config: cfg, Version: buildInfo().Version, Handler: a.logHandler(cfg, level), Level: level,
		Open: func(ctx context.Context, t *telemetry.Telemetry) (*backend.Store, error) {
			return backend.Open(ctx, backend.Options{Config: cfg.Config, Policy: p, Logger: t.Logger, Meter: t.Meter})
		},
		OpenOutbox: func(ctx context.Context, t *telemetry.Telemetry) (*backend.Outbox, error) {
			return backend.OpenOutbox(ctx, backend.Options{Config: cfg.Config, Policy: p, Logger: t.Logger, Meter: t.Meter})
		},
		Reload: reload,
	})
}

func (a *app) logHandler(cfg *config.Loaded, level *slog.LevelVar) slog.Handler {
	h := telemetry.NewLog(a.Err, telemetry.LogOptions{
		Level: level, Format: cfg.Telemetry.Log.Format, TTY: isTerminal(a.Err), Colour: a.colours(), Secrets: cfg.Secrets(),
	})
	return telemetry.WithCodes(h, func(err error) string {
		if f := backend.Fault(err); f.Code != fault.Internal {
			return string(f.Code)
		}
		return ""
	})
}

// commandLog returns the log of a command that is not a node: warnings and errors only.
func (a *app) commandLog(cfg *config.Loaded) *slog.Logger {
	level := telemetry.Level("warn")
	if a.quiet {
		level.Set(slog.LevelError)
	}
	return slog.New(telemetry.NewLog(a.Err, telemetry.LogOptions{
		Level: level, Format: "text", Colour: a.colours(), Secrets: cfg.Secrets(),
	}))
}
