package blobtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/emitd/emitd/storage/blob"
)

// listings are the cases of List.
var listings = map[string]func(*world){
	"list after write":         listAfterWrite,
	"list pages of odd keys":   listPages,
	"list by prefix":           listPrefixes,
	"list of nothing":          listNothing,
	"list more than one page":  listLong,
	"list knows the versions":  listVersions,
	"list after a deleted key": listAfterDeleted,
}

// keys lists all pages of a prefix, and checks what each page promises.
func (w *world) keys(prefix, after string, limit int) []string {
	w.Helper()
	var keys []string
	for pages := 0; ; pages++ {
		page, err := w.List(w.ctx, prefix, after, limit)
		if err != nil {
			w.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		if len(page.Entries) > blob.PageLimit(limit) {
			w.Fatalf("list %q: %d entries on a page of %d", prefix, len(page.Entries), limit)
		}
		for _, e := range page.Entries {
			if e.Key <= after || !strings.HasPrefix(e.Key, prefix) {
				w.Fatalf("list %q after %q: got %q", prefix, after, e.Key)
			}
			after = e.Key
			keys = append(keys, e.Key)
		}
		if !page.More {
			return keys
		}
		if len(page.Entries) == 0 || pages > 1000 {
			w.Fatalf("list %q: a page of %d entries says that there is more", prefix, len(page.Entries))
		}
	}
}

func (w *world) wantKeys(prefix, after string, limit int, want []string) {
	w.Helper()
	if got := w.keys(prefix, after, limit); !slices.Equal(got, want) {
		w.Fatalf("list %q after %q by %d:\n got %q\nwant %q", prefix, after, limit, got, want)
	}
}

func listAfterWrite(w *world) {
	var want []string
	for n := range 5 {
		key := fmt.Sprintf("log/%020d", n)
		w.create(key, "x")
		want = append(want, key)
		w.wantKeys("log/", "", 0, want)
	}
	for len(want) > 0 {
		if err := w.Delete(w.ctx, want[0]); err != nil {
			w.Fatal(err)
		}
		want = want[1:]
		w.wantKeys("log/", "", 0, want)
	}
}

// oddKeys sort differently if a backend sorts directories by their name alone: "-" and "." come
// before the slash, digits and letters after it.
var oddKeys = []string{
	"a-b", "a.b", "a/b", "a/b-c", "a/b.c", "a0", "a/c/d", "a/c-d", "a/c0", "a_b", "a/-", "a/_",
	"A1/x", "z/y/x/w/v/u", "z/y/x0", "0", "00/1", "_/_", "-/-", "a/b_c/d", "q/log/00000000000000000001", "q/log/00000000000000000010",
}

func listPages(w *world) {
	for _, key := range oddKeys {
		w.create(key, key)
	}
	want := slices.Sorted(slices.Values(oddKeys))
	for _, limit := range []int{0, 1, 2, 3, 7, len(want), len(want) + 1} {
		w.wantKeys("", "", limit, want)
	}
	for i, after := range want {
		w.wantKeys("", after, 4, want[i+1:])
	}
	w.wantKeys("", "a/", 0, want[slices.Index(want, "a/-"):])
	w.wantKeys("", "zzz", 0, nil)
}

func listPrefixes(w *world) {
	for _, key := range oddKeys {
		w.create(key, key)
	}
	sorted := slices.Sorted(slices.Values(oddKeys))
	for _, prefix := range []string{"a", "a/", "a/b", "a/c", "a/c/", "z/y/x", "z/y/x/", "q/log/0000000000000000001", "0", "none", "a/none/"} {
		var want []string
		for _, key := range sorted {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		for _, limit := range []int{0, 1, 2} {
			w.wantKeys(prefix, "", limit, want)
		}
		if len(want) > 1 {
			w.wantKeys(prefix, want[0], 1, want[1:])
		}
		w.wantKeys(prefix, "A", 0, want[countUpTo(want, "A"):]) // `after` before the prefix
	}
}

// countUpTo is the number of keys that do not sort after a bound.
func countUpTo(keys []string, bound string) (n int) {
	for _, key := range keys {
		if key <= bound {
			n++
		}
	}
	return n
}

func listNothing(w *world) {
	w.wantKeys("", "", 0, nil)
	w.wantKeys("no/such/", "", 0, nil)
	w.create("a/b", "x")
	if err := w.Delete(w.ctx, "a/b"); err != nil {
		w.Fatal(err)
	}
	w.wantKeys("", "", 0, nil)
	w.wantKeys("a/", "", 0, nil)
}

func listLong(w *world) {
	n := w.config.many(60)
	limit := max(1, n/7)
	var want []string
	for i := range n {
		key := fmt.Sprintf("log/%020d", i)
		w.create(key, "x")
		want = append(want, key)
	}
	w.create("lof/0", "before")
	w.create("loh/0", "after")
	w.wantKeys("log/", "", limit, want)
}

func listVersions(w *world) {
	v := w.create("a/HEAD", "one")
	v = w.replace("a/HEAD", "two", v)
	v = w.replace("a/HEAD", "three", v)
	u := w.create("a/seg", "")
	page, err := w.List(w.ctx, "a/", "", 0)
	if err != nil {
		w.Fatal(err)
	}
	if len(page.Entries) != 2 || page.More {
		w.Fatalf("got %+v", page)
	}
	for i, want := range []blob.Entry{{Key: "a/HEAD", Version: v, Size: 5}, {Key: "a/seg", Version: u, Size: 0}} {
		got := page.Entries[i]
		if got.Modified.IsZero() {
			w.Errorf("%s: no time", got.Key)
		}
		got.Modified = want.Modified
		if got != want {
			w.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func listAfterDeleted(w *world) {
	for _, key := range []string{"a/1", "a/2", "a/3", "b/1"} {
		w.create(key, "x")
	}
	if err := w.Delete(w.ctx, "a/2"); err != nil {
		w.Fatal(err)
	}
	w.wantKeys("", "a/2", 0, []string{"a/3", "b/1"})
	w.wantKeys("a/", "a/2", 1, []string{"a/3"})
}
