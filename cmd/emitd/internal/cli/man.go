package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/manual"
	"github.com/emitd/emitd/internal/admin/fault"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the man pages of all commands into a directory",
		Long: "Write the man pages of all commands into a directory, such as /usr/local/share/man/man1. The directory is created\n" +
			"if it does not exist. Pages of the same name are replaced.",
		Args: exactly(1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.writeManual(cmd.Root(), args[0]) },
	}
}

func (a *app) writeManual(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.New(fault.Usage, "the directory of the man pages: %w", err)
	}
	pages := manual.Pages(root, manual.Info{Version: buildInfo().Version, Sections: manualSections()})
	for _, p := range pages {
		if err := os.WriteFile(filepath.Join(dir, p.Name), []byte(p.Text), 0o644); err != nil {
			return fault.New(fault.Usage, "write a man page: %w", err)
		}
	}
	a.message("wrote %d pages to %s", len(pages), dir)
	return nil
}

// manualSections returns what the page of the program says beside its commands.
func manualSections() [][2]string {
	var exits strings.Builder
	for code, text := range []string{
		fault.ExitOK: "ok", fault.ExitFailed: "failed", fault.ExitUsage: "wrong usage or configuration; nothing was done", fault.ExitNotFound: "not found",
		fault.ExitUnreachable: "the store or a node does not answer", fault.ExitConflict: "conflict: the cluster has changed meanwhile", fault.ExitDegraded: "degraded: something needs attention",
	} {
		fmt.Fprintf(&exits, "\n%d\t%s", code, text)
	}
	return [][2]string{
		{"EXIT STATUS", "Every error has a code, such as E5101, which emitd error explains. The code decides the exit status:\n" + exits.String()},
		{"ENVIRONMENT", "Each setting KEY of the configuration is also the variable EMITD_KEY, with _ for dots, and the flag --KEY. A\n" +
			"variable EMITD_KEY_FILE names a file with the value, for secrets.\n\n" +
			config.FileEnv + "\tthe configuration file\nNO_COLOR\tno colours\nCOLUMNS\twidth of tables where output is no terminal"},
		{"FILES", config.DefaultFile + "\tthe configuration, unless --config or " + config.FileEnv + " names another file\n" +
			DevDir + "\tstate of emitd dev, in the directory where it was started"},
	}
}
