package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build identifies this program. Version is the tag, or the pseudo-version of a commit; "devel" if the build recorded
// neither.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildInfo() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			b.Version = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value[:min(len(s.Value), 12)]
			}
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return a.outputFlag(&cobra.Command{
		Use: "version", Short: "Show the version of this program", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.showVersion() },
	})
}

func (a *app) showVersion() error {
	b := buildInfo()
	return a.print(data{whole: b, names: []string{b.Version}, table: func(w io.Writer, _ bool) error {
		commit := ""
		if b.Commit != "" {
			commit = "commit " + b.Commit + ", "
		}
		_, err := fmt.Fprintf(w, "emitd %s (%s%s, %s)\n", b.Version, commit, b.Go, b.Platform)
		return err
	}})
}
