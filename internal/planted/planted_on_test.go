//go:build planted

package planted

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
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
	bugs := all(t)
	together := newTogether(t, bugs)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for _, by := range b.caught {
				start := time.Now()
				if program := together.program(&b, by); program != "" && caught(t, &b, by, 1, func() (string, error) { return together.run(t, program, &b, by) }) {
					t.Logf("caught by %s of %s in %v, built with others", by.test, by.pkg, time.Since(start).Round(time.Millisecond))
					continue
				}
				if !caught(t, &b, by, attempts, func() (string, error) { return run(t, &b, by) }) {
					t.Fatalf("%s of %s does not catch it in %d runs: %s", by.test, by.pkg, attempts, b.breaks)
				}
				t.Logf("caught by %s of %s in %v", by.test, by.pkg, time.Since(start).Round(time.Millisecond))
			}
		})
	}
}

// caught runs a test until it has failed, and reports whether it did. Another end than the failure of the test is an error.
func caught(t *testing.T, b *bug, by catch, most int, run func() (string, error)) bool {
	t.Helper()
	for range most {
		out, err := run()
		if err == nil {
			continue
		}
		if !regexp.MustCompile(`(?m)^--- FAIL: (` + by.test + `) `).MatchString(out) {
			t.Fatalf("%s of %s does not catch it: %s: %v\n%s", by.test, by.pkg, b.breaks, err, out)
		}
		return true
	}
	return false
}

// environment is that of the tests.
func environment(more ...string) []string {
	return append(append(os.Environ(), "EMITD_TEST_SEEDS=1..400", "EMITD_TEST_JOURNAL_SEEDS=400"), more...)
}

// together has one program for each package of tests, with all bugs that can be built into one program. To build a program for each bug would
// take longer than to run them.
type together struct {
	flags    string // GOFLAGS
	combined map[string]bool
	programs map[string]func() string // by package; "": it does not build
}

func newTogether(t *testing.T, bugs []bug) *together {
	t.Helper()
	to := &together{programs: map[string]func() string{}}
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return to // few bugs are chosen
	}
	files, combined, err := combine(root, bugs)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	to.flags, to.combined = overlay(t, dir, files), combined
	for _, b := range bugs {
		for _, by := range b.caught {
			if to.programs[by.pkg] == nil {
				to.programs[by.pkg] = sync.OnceValue(func() string {
					program := filepath.Join(dir, strings.ReplaceAll(by.pkg, "/", "_")+".test")
					module, pkg := moduleOf(by.pkg)
					cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, "./"+pkg)
					cmd.Dir, cmd.Env = module, append(os.Environ(), to.flags)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%s does not build with all bugs: %v\n%s", by.pkg, err, out)
						return ""
					}
					return program
				})
			}
		}
	}
	return to
}

// program returns the program with the bug's test; "": the bug has a program of its own.
func (to *together) program(b *bug, by catch) string {
	if !to.combined[b.name] {
		return ""
	}
	return to.programs[by.pkg]()
}

func (to *together) run(t *testing.T, program string, b *bug, by catch) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "-test.count=1", "-test.failfast", "-test.timeout=10m", "-test.run=^("+by.test+")$")
	cmd.Dir = filepath.Join(root, filepath.FromSlash(by.pkg))
	cmd.Env = environment(to.flags, bugVariable+"="+b.name)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run runs one of the bug's tests with the bug planted.
func run(t *testing.T, b *bug, by catch) (string, error) {
	t.Helper()
	files, err := b.apply(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	flags := overlay(t, dir, files)
	module, pkg := moduleOf(by.pkg)
	if module != root {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "emitd"), "./cmd/emitd")
		build.Dir, build.Env = root, append(os.Environ(), flags)
		if out, err := build.CombinedOutput(); err != nil { // the test would fail for no other reason
			t.Fatalf("with the bug, emitd does not build: %v\n%s", err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-failfast",
		"-timeout=10m", "-run=^("+by.test+")$", "./"+pkg)
	cmd.Dir, cmd.Env = module, environment(flags)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// moduleOf returns the directory of a package's module, and the package's in it.
func moduleOf(pkg string) (module, in string) {
	if in, is := strings.CutPrefix(pkg, "e2e/"); is {
		return filepath.Join(root, "e2e"), in
	}
	return root, pkg
}

// overlay writes files that replace those of the module into dir, and returns the variable that gives them to the go command, also in
// what a test builds.
func overlay(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	replace := map[string]string{}
	for name, text := range files {
		original, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		changed := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[original] = changed
	}
	name := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+name)
}
