package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManual checks that every command has a page, and that groff finds nothing wrong with it, where there is a groff.
func TestManual(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	if code := Main(t.Context(), []string{"man", dir, "--quiet"}, Streams{Out: os.Stdout, Err: os.Stderr}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	groff, _ := exec.LookPath("groff")
	pages := 0
	walk(testRoot(), func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		pages++
		page := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		if _, err := os.Stat(page); err != nil {
			t.Error(err)
			return
		}
		if groff == "" {
			return
		}
		if out, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", page).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", page, err, out)
		}
	})
	if files, _ := os.ReadDir(dir); len(files) != pages || pages < 60 {
		t.Errorf("%d files of %d commands", len(files), pages)
	}
}
