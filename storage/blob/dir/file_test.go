package dir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/emitd/emitd/storage/blob"
)

// TestDamage: a file that was changed directly is ErrCorrupt, never data.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"bit of the data":   func(d []byte) []byte { d[len(d)-1] ^= 1; return d },
		"bit of the header": func(d []byte) []byte { d[20] ^= 1; return d },
		"bit of the length": func(d []byte) []byte { d[len(magic)+32] ^= 1; return d },
		"cut":               func(d []byte) []byte { return d[:len(d)-1] },
		"cut in the header": func(d []byte) []byte { return d[:headerSize-3] },
		"empty":             func([]byte) []byte { return nil },
		"longer":            func(d []byte) []byte { return append(d, 0) },
		"foreign":           func([]byte) []byte { return bytes.Repeat([]byte("foreign "), 20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := mustOpen(t, t.TempDir())
			v, err := b.Create(t.Context(), "a/b", []byte("some data"))
			if err != nil {
				t.Fatal(err)
			}
			path := b.path("a/b")
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			if o, err := b.Read(t.Context(), "a/b"); !errors.Is(err, blob.ErrCorrupt) {
				t.Errorf("read: got %v, %v, want ErrCorrupt", o, err)
			}
			if strings.HasPrefix(name, "bit of the data") {
				return // only a read of the whole file can detect that
			}
			_, err = b.Replace(t.Context(), "a/b", []byte("new"), v)
			if !errors.Is(err, blob.ErrCorrupt) || !blob.NotApplied(err) {
				t.Errorf("replace: got %v, want a certain ErrCorrupt", err)
			}
			if page, err := b.List(t.Context(), "a/", "", 0); err != nil || len(page.Entries) != 1 || page.Entries[0].Key != "a/b" || page.Entries[0].Version != "" {
				t.Errorf("list: got %+v, %v, want the key without a version", page, err)
			}
			if err := b.Delete(t.Context(), "a/b"); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
	}
}

// TestListReadsNoMoreThanItMust: a damaged file outside of the prefix, or before or after the page,
// is not even opened.
func TestListReadsNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, t.TempDir())
	for _, key := range []string{"a/1", "b/log/1", "b/log/2", "b/log/3", "b/log/4", "b/lot/1", "c/1"} {
		if _, err := b.Create(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a/1", "b/log/1", "b/log/4", "b/lot/1", "c/1"} {
		if err := os.WriteFile(b.path(key), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page, err := b.List(t.Context(), "b/log/", "b/log/1", 2)
	if err != nil || len(page.Entries) != 2 || !page.More {
		t.Errorf("got %+v, %v", page, err)
	}
}

func TestTheBucketIsGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mount")
	b := mustOpen(t, path)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	_, create := b.Create(t.Context(), "a", nil)
	_, write := b.Write(t.Context(), "a", nil)
	_, read := b.Read(t.Context(), "a")
	_, list := b.List(t.Context(), "", "", 0)
	for _, err := range []error{create, write, read, list, b.Delete(t.Context(), "a")} {
		if !errors.Is(err, blob.ErrNoBucket) || !blob.NotApplied(err) {
			t.Errorf("got %v, want a certain ErrNoBucket: an unmounted disk is not an empty bucket", err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the bucket was created again")
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", file} {
		if _, err := Open(Config{Path: path}); err == nil || !blob.NotApplied(err) {
			t.Errorf("%q: got %v", path, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Config{
		"file:///var/lib/emitd":           {Path: filepath.FromSlash("/var/lib/emitd")},
		"file://localhost/var":            {Path: filepath.FromSlash("/var")},
		"file:///a%20b?sync=false":        {Path: filepath.FromSlash("/a b"), NoSync: true},
		"file:///var/lib/emitd?sync=true": {Path: filepath.FromSlash("/var/lib/emitd")},
	} {
		if got, err := ParseURL(raw); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"file://", "file:relative", "file://host/path", "/var", "s3://b", "file:///a?sync=perhaps", "file:///a?fsync=true"} {
		if _, err := ParseURL(raw); err == nil {
			t.Errorf("%s: no error", raw)
		}
	}
}

// FuzzDecode: every header that decodes is encoded to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add(newHeader([]byte("data")).encode(), int64(headerSize+4))
	f.Add([]byte(magic), int64(0))
	f.Fuzz(func(t *testing.T, raw []byte, size int64) {
		h, err := decode(raw, size)
		if err != nil {
			if !errors.Is(err, blob.ErrCorrupt) {
				t.Fatalf("got %v, want ErrCorrupt", err)
			}
			return
		}
		if !bytes.Equal(h.encode(), raw) || int64(h.length)+int64(headerSize) != size {
			t.Fatalf("%x of a file of %d bytes was decoded as %+v", raw, size, h)
		}
	})
}

// FuzzVersionFile: every name that parses as a replacement's is written the same way.
func FuzzVersionFile(f *testing.F) {
	f.Add(nonce{1}.String() + "-2")
	f.Add(nonce{1}.String() + "-02")
	f.Fuzz(func(t *testing.T, name string) {
		root, n, ok := parseVersionFile(name)
		if ok && (root+"-"+strconv.FormatUint(n, 10) != name || len(root) != len(nonce{}.String())) {
			t.Errorf("%q is taken for %s, %d", name, root, n)
		}
	})
}

// TestKeep: an object that cannot be read is listed, is ErrCorrupt when read, can be kept under
// another key, and can be deleted. The same goes for a readable object with its replacements.
func TestKeep(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{Path: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, key := range []string{"a/circle", "a/whole"} {
		v, err := b.Create(ctx, key, []byte("first"))
		if err == nil {
			_, err = b.Replace(ctx, key, []byte("second"), v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path := b.path("a/circle")
	if err := errors.Join(os.Remove(path), os.Symlink("circle", path)); err != nil {
		t.Fatal(err)
	}
	if page, err := b.List(ctx, "a/", "", 0); err != nil || len(page.Entries) != 2 || page.Entries[0].Version != "" {
		t.Errorf("listed %+v, %v", page, err)
	}
	if _, err := b.Read(ctx, "a/circle"); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
	for _, name := range []string{"circle", "whole"} {
		for range 2 { // the second time the key exists
			if err := blob.Preserve(ctx, b, "a/"+name, "kept/"+name); err != nil {
				t.Error(err)
			}
		}
		if err := b.Delete(ctx, "a/"+name); err != nil {
			t.Error(err)
		}
	}
	if to, err := os.Readlink(b.path("kept/circle")); err != nil || to != "circle" {
		t.Errorf("%q, %v", to, err)
	}
	if o, err := b.Read(ctx, "kept/whole"); err != nil || string(o.Data) != "second" {
		t.Errorf("%v, %v", o, err)
	}
	if err := blob.Preserve(ctx, b, "a/whole", "kept/other"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("what is gone: %v", err)
	}
	if _, err := b.Create(ctx, "a/whole", []byte("another")); err != nil {
		t.Fatal(err)
	}
	if err := blob.Preserve(ctx, b, "a/whole", "kept/whole"); !errors.Is(err, blob.ErrExists) {
		t.Errorf("what is there: %v", err)
	}
}

// TestNamesThatCannotBeKeys: files and directories whose names cannot be keys are not listed. No call could read or delete them.
func TestNamesThatCannotBeKeys(t *testing.T) {
	t.Parallel()
	b := mustOpen(t, t.TempDir())
	if _, err := b.Create(t.Context(), "log/1", []byte("data")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"log/1~", "log/1 (copy)", "log/.1.swp", "lost+found/file"} {
		path := b.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page, err := b.List(t.Context(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Entries) != 1 || page.Entries[0].Key != "log/1" {
		t.Errorf("got %v, want log/1 only", page.Entries)
	}
}
