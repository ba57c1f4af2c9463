package dir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

var errKilled = errors.New("killed")

func mustOpen(t *testing.T, path string) *Bucket {
	t.Helper()
	b, err := Open(Config{Path: path, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// killAt makes every step from number n on end the call, as if the process had been killed: nothing
// runs after it, not even cleanup. It returns the names of the steps that were reached.
func killAt(b *Bucket, n int) *[]string {
	var steps []string
	b.step = func(name string) error {
		steps = append(steps, name)
		if len(steps) > n {
			return errKilled
		}
		return nil
	}
	return &steps
}

// prepared is a bucket with an object that was replaced `replacements` times; -1 is none.
func prepared(t *testing.T, replacements int) (b *Bucket, v blob.Version) {
	t.Helper()
	b = mustOpen(t, t.TempDir())
	if replacements < 0 {
		return b, ""
	}
	v, err := b.Create(t.Context(), "q/HEAD", []byte("old 0"))
	for n := range replacements {
		if err == nil {
			v, err = b.Replace(t.Context(), "q/HEAD", fmt.Appendf(nil, "old %d", n+1), v)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return b, v
}

// TestKilledAtEveryStep: a writer that is killed before any of its steps leaves its whole effect or
// none. What it was told is true, and other processes go on without a problem.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replacements int
		do           func(*Bucket, blob.Version) error
		before       string // content; empty is no object
		after        string
	}{
		"create": {-1, func(b *Bucket, _ blob.Version) error {
			_, err := b.Create(context.Background(), "q/HEAD", []byte("new"))
			return err
		}, "", "new"},
		"first replace": {0, func(b *Bucket, v blob.Version) error {
			_, err := b.Replace(context.Background(), "q/HEAD", []byte("new"), v)
			return err
		}, "old 0", "new"},
		"replace that collects": {keptVersions + 3, func(b *Bucket, v blob.Version) error {
			_, err := b.Replace(context.Background(), "q/HEAD", []byte("new"), v)
			return err
		}, fmt.Sprintf("old %d", keptVersions+3), "new"},
		"write": {2, func(b *Bucket, _ blob.Version) error {
			_, err := b.Write(context.Background(), "q/HEAD", []byte("new"))
			return err
		}, "old 2", "new"},
		"delete": {3, func(b *Bucket, _ blob.Version) error { return b.Delete(context.Background(), "q/HEAD") }, "old 3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 0; ; n++ {
				b, v := prepared(t, c.replacements)
				steps := killAt(b, n)
				err := c.do(b, v)
				killed := len(*steps) > n
				checkAfter(t, b.root, err, c.before, c.after)
				if t.Failed() {
					t.Fatalf("killed before step %d of %q", n, *steps)
				}
				if !killed {
					if err != nil {
						t.Fatalf("not killed, and failed: %v", err)
					}
					return
				}
			}
		})
	}
}

// checkAfter opens a bucket as the next process would, checks it, and uses it.
func checkAfter(t *testing.T, root string, err error, before, after string) {
	t.Helper()
	b := mustOpen(t, root)
	got := ""
	o, readErr := b.Read(t.Context(), "q/HEAD")
	if readErr == nil {
		got = string(o.Data)
	} else if !errors.Is(readErr, blob.ErrNotFound) {
		t.Errorf("read: %v", readErr)
	}
	switch {
	case got != before && got != after:
		t.Errorf("neither all nor nothing: %q", got)
	case err == nil && got != after:
		t.Errorf("acknowledged, and not there: %q", got)
	case blob.NotApplied(err) && got != before:
		t.Errorf("happened in spite of: %v", err)
	}
	page, listErr := b.List(t.Context(), "", "", 0)
	if listErr != nil || (len(page.Entries) == 1) != (got != "") {
		t.Errorf("list: %+v, %v", page, listErr)
	}
	for n := range keptVersions + 3 {
		if _, err := b.Write(t.Context(), "q/HEAD", fmt.Appendf(nil, "next %d", n)); err != nil {
			t.Errorf("write afterwards: %v", err)
		}
	}
	if err := b.Delete(t.Context(), "q/HEAD"); err != nil {
		t.Errorf("delete afterwards: %v", err)
	}
	if _, err := b.Create(t.Context(), "q/HEAD", nil); err != nil {
		t.Errorf("create afterwards: %v", err)
	}
}

// stopBefore runs `meanwhile` once, before a step of b: what other processes do while a writer is
// stopped.
func stopBefore(b *Bucket, step string, meanwhile func()) {
	b.step = func(name string) error {
		if name == step && meanwhile != nil {
			do := meanwhile
			meanwhile = nil
			do()
		}
		return nil
	}
}

// TestStoppedWriter: a writer is stopped before or after its link. Meanwhile others replace the
// object until the versions in between are collected, or delete it.
func TestStoppedWriter(t *testing.T) {
	t.Parallel()
	replaceTimes := func(n int) func(*testing.T, *Bucket) string {
		return func(t *testing.T, b *Bucket) (last string) {
			for i := range n {
				o, err := b.Read(t.Context(), "q/HEAD")
				if err != nil {
					t.Fatal(err)
				}
				last = fmt.Sprintf("other %d", i)
				if _, err := b.Replace(t.Context(), "q/HEAD", []byte(last), o.Version); err != nil {
					t.Fatal(err)
				}
			}
			return last
		}
	}
	deleted := func(t *testing.T, b *Bucket) string {
		if err := b.Delete(t.Context(), "q/HEAD"); err != nil {
			t.Fatal(err)
		}
		return ""
	}
	recreated := func(t *testing.T, b *Bucket) string {
		deleted(t, b)
		if _, err := b.Create(t.Context(), "q/HEAD", []byte("recreated")); err != nil {
			t.Fatal(err)
		}
		return "recreated"
	}
	for _, c := range []struct {
		name, step string
		meanwhile  func(*testing.T, *Bucket) string
		want       error
		certain    bool
	}{
		{"before the link, one replacement", "link", replaceTimes(1), blob.ErrChanged, true},
		{"before the link, versions collected", "link", replaceTimes(keptVersions + 1), blob.ErrChanged, true},
		{"before the link, many collected", "link", replaceTimes(5 * keptVersions), blob.ErrChanged, true},
		{"after the link, one replacement", "confirm", replaceTimes(1), nil, false},
		{"after the link, own version collected", "confirm", replaceTimes(keptVersions), nil, false},
		{"after the link, many collected", "confirm", replaceTimes(5 * keptVersions), nil, false},
		{"before the link, deleted", "link", deleted, blob.ErrChanged, false},
		{"before the link, created anew", "link", recreated, blob.ErrChanged, false},
		{"after the link, deleted", "confirm", deleted, blob.ErrChanged, false},
		{"after the link, created anew", "confirm", recreated, blob.ErrChanged, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, v := prepared(t, 3)
			other := mustOpen(t, b.root)
			last := ""
			stopBefore(b, c.step, func() { last = c.meanwhile(t, other) })
			_, err := b.Replace(t.Context(), "q/HEAD", []byte("mine"), v)
			if !errors.Is(err, c.want) || (err != nil && blob.NotApplied(err) != c.certain) {
				t.Errorf("got %v (certain %v), want %v (certain %v)", err, blob.NotApplied(err), c.want, c.certain)
			}
			o, err := other.Read(t.Context(), "q/HEAD")
			if last == "" && errors.Is(err, blob.ErrNotFound) {
				return
			}
			if err != nil || string(o.Data) != last {
				t.Errorf("read %v, %v; want %q", o, err, last)
			}
		})
	}
}

// TestStoppedReader: a reader is stopped between its steps while its object is deleted, or deleted
// and created again. The first content, which was replaced long ago, does not come back.
func TestStoppedReader(t *testing.T) {
	t.Parallel()
	b, _ := prepared(t, 2)
	other := mustOpen(t, b.root)
	stopBefore(b, "look", func() {
		if err := other.Delete(t.Context(), "q/HEAD"); err != nil {
			t.Fatal(err)
		}
	})
	if o, err := b.Read(t.Context(), "q/HEAD"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("deleted meanwhile: got %v, %v, want ErrNotFound", o, err)
	}
	b, _ = prepared(t, 2)
	other = mustOpen(t, b.root)
	stopBefore(b, "look", func() {
		if err := other.Delete(t.Context(), "q/HEAD"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Create(t.Context(), "q/HEAD", []byte("anew")); err != nil {
			t.Fatal(err)
		}
	})
	if o, err := b.Read(t.Context(), "q/HEAD"); err != nil || string(o.Data) != "anew" {
		t.Errorf("created anew meanwhile: got %v, %v", o, err)
	}
}

// files lists what is in the bucket's directories, including the temporary one.
func files(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestOldVersionsAreCollected(t *testing.T) {
	t.Parallel()
	b, _ := prepared(t, 10*keptVersions)
	if got := files(t, b.root); len(got) > keptVersions+1 {
		t.Errorf("%d files: %q", len(got), got)
	}
	if err := b.Delete(t.Context(), "q/HEAD"); err != nil {
		t.Fatal(err)
	}
	if got := files(t, b.root); len(got) != 0 {
		t.Errorf("left after delete: %q", got)
	}
	if entries, err := os.ReadDir(b.root); err != nil || len(entries) != 1 {
		t.Errorf("left directories: %v, %v", entries, err)
	}
}

// TestRubbishOfDeadObjectsIsCollected: a process deleted an object and was killed before its
// cleanup. The next replacement of the key's new object removes the leftover versions.
func TestRubbishOfDeadObjectsIsCollected(t *testing.T) {
	t.Parallel()
	b, _ := prepared(t, 3)
	b.step = func(name string) error {
		if name == "bury" || name == "prune" {
			return errKilled
		}
		return nil
	}
	if err := b.Delete(t.Context(), "q/HEAD"); err != nil {
		t.Fatal(err)
	}
	b.step = nil
	for n := range 2 * keptVersions {
		if _, err := b.Write(t.Context(), "q/HEAD", fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	roots := map[string]bool{}
	for _, name := range files(t, b.root) {
		if r, _, ok := parseVersionFile(filepath.Base(name)); ok {
			roots[r] = true
		}
	}
	if len(roots) != 1 {
		t.Errorf("versions of %d roots are left", len(roots))
	}
}

func TestStaleTemporaryFilesGo(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, t.TempDir())
	old, young := filepath.Join(b.tmp(), "old"), filepath.Join(b.tmp(), "young")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * stale)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, b.root)
	if got := files(t, b.root); !slices.Equal(got, []string{"/.tmp/young"}) {
		t.Errorf("left: %q", got)
	}
}

// TestNameThatIsNotDurable: a name was linked, and the disk cannot make it durable. The repetition finds the name, and must
// not say with certainty that the object exists: its caller would take its own write for stored.
func TestNameThatIsNotDurable(t *testing.T) {
	t.Parallel()
	b, v := prepared(t, 0)
	failing := errors.New("input/output error")
	b.step = func(name string) error {
		if name == "sync" {
			return failing
		}
		return nil
	}
	unknown := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, blob.ErrUnknownOutcome) || !errors.Is(err, failing) || errors.Is(err, blob.ErrExists) || errors.Is(err, blob.ErrChanged) {
			t.Errorf("%s: got %v, want an unknown outcome", what, err)
		}
	}
	for range 2 {
		_, err := b.Create(t.Context(), "log/1", []byte("records"))
		unknown("create", err)
		_, err = b.Replace(t.Context(), "q/HEAD", []byte("new"), v)
		unknown("replace", err)
	}
	b.step = nil
	if _, err := b.Create(t.Context(), "log/1", []byte("records")); !errors.Is(err, blob.ErrExists) || errors.Is(err, blob.ErrUnknownOutcome) {
		t.Errorf("got %v when the disk works again", err)
	}
}

// TestParentThatGoesAgain: a deletion removes the empty parent directory after a writer has made it, and before the writer
// has made the directory in it.
func TestParentThatGoesAgain(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, t.TempDir())
	removed := false
	b.step = func(name string) error {
		if name == "mkdir" && !removed {
			removed = true
			return os.Remove(filepath.Join(b.root, "deep"))
		}
		return nil
	}
	if _, err := b.Create(t.Context(), "deep/er/key", []byte("text")); err != nil || !removed {
		t.Errorf("got %v, removed %v", err, removed)
	}
}
