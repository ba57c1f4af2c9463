package blobtest

import (
	"errors"

	"github.com/emitd/emitd/storage/blob"
)

// writes are the cases of callers one after the other.
var writes = map[string]func(*world){
	"create twice":                        createTwice,
	"replace needs the current version":   replaceStale,
	"replace what is not there":           replaceAbsent,
	"write needs no version":              writeUnconditional,
	"delete is idempotent":                deleteTwice,
	"a deleted key can be created again":  recreate,
	"versions differ with bytes":          versionsDiffer,
	"equal bytes are replaced like other": equalBytes,
	"read only what is newer":             readNewer,
	"read the beginning":                  readBeginning,
	"another handle sees it at once":      anotherHandle,
}

func createTwice(w *world) {
	v := w.create("q/HEAD", "one")
	_, err := w.Create(w.ctx, "q/HEAD", []byte("two"))
	if !errors.Is(err, blob.ErrExists) || !blob.NotApplied(err) {
		w.Fatalf("second create: got %v, want a certain ErrExists", err)
	}
	if got := w.want("q/HEAD", "one"); got != v {
		w.Fatalf("read has version %q, create returned %q", got, v)
	}
}

func replaceStale(w *world) {
	v1 := w.create("q/HEAD", "one")
	v2 := w.replace("q/HEAD", "two", v1)
	for _, old := range []blob.Version{v1, "", "no such version", v2 + "0"} {
		_, err := w.Replace(w.ctx, "q/HEAD", []byte("three"), old)
		if !errors.Is(err, blob.ErrChanged) || !blob.NotApplied(err) {
			w.Fatalf("replace of version %q: got %v, want a certain ErrChanged", old, err)
		}
	}
	if got := w.want("q/HEAD", "two"); got != v2 {
		w.Fatalf("read has version %q, replace returned %q", got, v2)
	}
	w.want("q/HEAD", "two")
	for i, v := 0, v2; i < 20; i++ {
		v = w.replace("q/HEAD", "step "+string(rune('a'+i)), v)
		w.want("q/HEAD", "step "+string(rune('a'+i)))
	}
}

func replaceAbsent(w *world) {
	v := w.create("a", "one")
	if err := w.Delete(w.ctx, "a"); err != nil {
		w.Fatal(err)
	}
	for _, key := range []string{"a", "never"} {
		_, err := w.Replace(w.ctx, key, []byte("two"), v)
		if !errors.Is(err, blob.ErrChanged) || !blob.NotApplied(err) {
			w.Fatalf("replace of absent %q: got %v, want a certain ErrChanged", key, err)
		}
		if _, err := w.Read(w.ctx, key); !errors.Is(err, blob.ErrNotFound) {
			w.Fatalf("read of absent %q: got %v, want ErrNotFound", key, err)
		}
	}
}

func writeUnconditional(w *world) {
	for _, data := range []string{"one", "two", "two", "", "three"} {
		v, err := w.Write(w.ctx, "in/n/node/1", []byte(data))
		if err != nil {
			w.Fatal(err)
		}
		if got := w.want("in/n/node/1", data); got != v {
			w.Fatalf("read has version %q, write returned %q", got, v)
		}
	}
}

func deleteTwice(w *world) {
	w.create("a/b", "one")
	w.create("a/c", "other")
	for range 3 {
		if err := w.Delete(w.ctx, "a/b"); err != nil {
			w.Fatalf("delete: %v", err)
		}
		if _, err := w.Read(w.ctx, "a/b"); !errors.Is(err, blob.ErrNotFound) {
			w.Fatalf("read after delete: got %v, want ErrNotFound", err)
		}
	}
	if err := w.Delete(w.ctx, "never/was/there"); err != nil {
		w.Fatalf("delete of what never was: %v", err)
	}
	w.want("a/c", "other")
}

// recreate also passes versions of deleted objects, which had other bytes.
func recreate(w *world) {
	var former []blob.Version
	for _, data := range []string{"one", "two", "three"} {
		v1 := w.create("a/b", data)
		v2 := w.replace("a/b", data+" again", v1)
		v3 := w.replace("a/b", data+" and again", v2)
		for _, old := range former {
			if _, err := w.Replace(w.ctx, "a/b", []byte("late"), old); !errors.Is(err, blob.ErrChanged) {
				w.Fatalf("replace of a version from before the deletion: got %v, want ErrChanged", err)
			}
		}
		former = append(former, v1, v2, v3)
		if err := w.Delete(w.ctx, "a/b"); err != nil {
			w.Fatal(err)
		}
	}
	v := w.create("a/b", "last")
	w.want("a/b", "last")
	w.replace("a/b", "very last", v)
	w.want("a/b", "very last")
}

func versionsDiffer(w *world) {
	seen := map[blob.Version]string{}
	v := w.create("a", "0")
	for _, data := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "", "00"} {
		if was, ok := seen[v]; ok {
			w.Fatalf("%q and %q have the same version %q", was, data, v)
		}
		seen[v] = data
		v = w.replace("a", data, v)
	}
}

// equalBytes allows a version to repeat, and requires that everything else still works.
func equalBytes(w *world) {
	v1 := w.create("a", "same")
	v2 := w.replace("a", "same", v1)
	w.replace("a", "other", v2)
	if _, err := w.Replace(w.ctx, "a", []byte("late"), v1); !errors.Is(err, blob.ErrChanged) {
		w.Fatalf("got %v, want ErrChanged", err)
	}
	w.want("a", "other")
}

func readNewer(w *world) {
	if _, err := w.ReadNewer(w.ctx, "a", "whatever"); !errors.Is(err, blob.ErrNotFound) {
		w.Fatalf("absent: got %v, want ErrNotFound", err)
	}
	v1 := w.create("a", "one")
	if _, err := w.ReadNewer(w.ctx, "a", v1); !errors.Is(err, blob.ErrNotModified) {
		w.Fatalf("same version: got %v, want ErrNotModified", err)
	}
	v2 := w.replace("a", "two", v1)
	for _, known := range []blob.Version{v1, ""} {
		o, err := w.ReadNewer(w.ctx, "a", known)
		if err != nil || string(o.Data) != "two" || o.Version != v2 {
			w.Fatalf("known %q: got %v, %v", known, o, err)
		}
	}
}

func readBeginning(w *world) {
	v := w.create("a", "0123456789")
	for n, want := range map[int]string{1: "0", 4: "0123", 10: "0123456789", 4096: "0123456789"} {
		o, err := w.ReadPrefix(w.ctx, "a", n)
		if err != nil || string(o.Data) != want || o.Version != v {
			w.Fatalf("first %d bytes: got %v, %v; want %q of version %q", n, o, err, want, v)
		}
	}
	w.create("empty", "")
	if o, err := w.ReadPrefix(w.ctx, "empty", 48); err != nil || len(o.Data) != 0 {
		w.Fatalf("beginning of an empty object: %v, %v", o, err)
	}
	if _, err := w.ReadPrefix(w.ctx, "absent", 48); !errors.Is(err, blob.ErrNotFound) {
		w.Fatalf("beginning of an absent object: got %v, want ErrNotFound", err)
	}
}

func anotherHandle(w *world) {
	other := &world{T: w.T, Bucket: w.another(), config: w.config, ctx: w.ctx}
	w.create("a/b", "one")
	v := other.replace("a/b", "two", other.want("a/b", "one"))
	w.replace("a/b", "three", v)
	other.want("a/b", "three")
	if err := other.Delete(w.ctx, "a/b"); err != nil {
		w.Fatal(err)
	}
	if _, err := w.Read(w.ctx, "a/b"); !errors.Is(err, blob.ErrNotFound) {
		w.Fatalf("got %v, want ErrNotFound", err)
	}
}
