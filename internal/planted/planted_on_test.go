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

// attempts is how often a test may pass with the bug before the bug counts as missed. Most bugs are caught in the
// first run. Tests of processes and clocks see some bugs only if the scheduler lets them.
const attempts = 5

// TestPlanted plants each bug and requires that its test fails. The simulators stop at the first
// seed that fails.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, b := range all(t) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for _, by := range b.caught {
				start, runs := time.Now(), 1
				out, err := run(t, &b, by)
				for ; err == nil && runs < attempts; runs++ {
					out, err = run(t, &b, by)
				}
				failed := regexp.MustCompile(`(?m)^--- FAIL: (` + by.test + `) `).MatchString(out)
				if err == nil || !failed {
					t.Fatalf("%s of %s does not catch it in %d runs: %s: %v\n%s", by.test, by.pkg, runs, b.breaks, err, out)
				}
				t.Logf("caught by %s of %s in %v, run %d", by.test, by.pkg, time.Since(start).Round(time.Millisecond), runs)
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
	flags := "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay) // also for what the test builds
	dir, pkg := root, by.pkg
	if in, is := strings.CutPrefix(by.pkg, "e2e/"); is { // a module of its own
		dir, pkg = filepath.Join(root, "e2e"), in
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(overlays, "emitd"), "./cmd/emitd")
		build.Dir, build.Env = root, append(os.Environ(), flags)
		if out, err := build.CombinedOutput(); err != nil { // the test would fail for no other reason
			t.Fatalf("with the bug, emitd does not build: %v\n%s", err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-failfast",
		"-timeout=10m", "-run=^("+by.test+")$", "./"+pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), flags, "EMITD_TEST_SEEDS=1..400", "EMITD_TEST_JOURNAL_SEEDS=400")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
