//go:build planted

package planted

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestPlanted plants each bug and requires that its test fails. The simulators stop at the first
// seed that fails.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for _, by := range b.caught {
				start := time.Now()
				out, err := run(t, &b, by)
				failed := regexp.MustCompile(`(?m)^--- FAIL: (` + by.test + `) `).MatchString(out)
				if err == nil || !failed {
					t.Fatalf("%s of %s does not catch it: %s: %v\n%s", by.test, by.pkg, b.breaks, err, out)
				}
				t.Logf("caught by %s of %s in %v", by.test, by.pkg, time.Since(start).Round(time.Millisecond))
			}
		})
	}
}

// run runs one of the bug's tests with the bug planted.
func run(t *testing.T, b *bug, by catch) (string, error) {
	t.Helper()
	files, err := b.apply(root)
	if err != nil {
		t.Fatal(err)
	}
	overlays := t.TempDir()
	replace := map[string]string{}
	for name, text := range files {
		original, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		changed := filepath.Join(overlays, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[original] = changed
	}
	overlay := filepath.Join(overlays, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, pkg := root, by.pkg
	if in, is := strings.CutPrefix(by.pkg, "e2e/"); is { // a module of its own
		dir, pkg = filepath.Join(root, "e2e"), in
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast",
		"-timeout=10m", "-run=^("+by.test+")$", "./"+pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "EMITD_TEST_SEEDS=1..400", "EMITD_TEST_JOURNAL_SEEDS=400")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
