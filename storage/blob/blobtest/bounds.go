package blobtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/emitd/emitd/storage/blob"
)

// bounds are the cases of sizes, keys and contexts.
var bounds = map[string]func(*world){
	"empty object":         emptyObject,
	"big object":           bigObject,
	"odd keys":             oddNames,
	"longest key":          longestKey,
	"bad keys":             badKeys,
	"buffers are not kept": buffers,
	"context has ended":    endedContext,
}

func emptyObject(w *world) {
	v := w.create("a", "")
	w.want("a", "")
	v = w.replace("a", "x", v)
	v = w.replace("a", "", v)
	if got := w.want("a", ""); got != v {
		w.Fatalf("read has version %q, replace returned %q", got, v)
	}
}

func bigObject(w *world) {
	data := make([]byte, w.config.Big)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	v := w.create("ckpt/1", string(data))
	w.want("ckpt/1", string(data))
	data[0]++
	w.replace("ckpt/1", string(data), v)
	w.want("ckpt/1", string(data))
	o, err := w.ReadPrefix(w.ctx, "ckpt/1", 48)
	if err != nil || !bytes.Equal(o.Data, data[:48]) {
		w.Fatalf("first 48 bytes: %v", err)
	}
}

func oddNames(w *world) {
	for _, key := range oddKeys {
		w.create(key, "content of "+key)
	}
	for _, key := range oddKeys {
		v := w.want(key, "content of "+key)
		w.replace(key, "new content of "+key, v)
		w.want(key, "new content of "+key)
	}
	for _, key := range oddKeys {
		if err := w.Delete(w.ctx, key); err != nil {
			w.Fatal(err)
		}
	}
	w.wantKeys("", "", 0, nil)
}

func longestKey(w *world) {
	segment := strings.Repeat("s", blob.MaxSegment)
	key := segment + "/" + segment + "/" + strings.Repeat("t", blob.MaxKey-2*blob.MaxSegment-2)
	v := w.create(key, "one")
	w.replace(key, "two", v)
	w.want(key, "two")
	w.wantKeys(key, "", 0, []string{key})
	w.wantKeys(segment+"/", "", 0, []string{key})
	if err := w.Delete(w.ctx, key); err != nil {
		w.Fatal(err)
	}
}

func badKeys(w *world) {
	for _, key := range []string{
		"", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".tmp/x", "a/.b", "a.", "a b", "a\x00b", "a\nb",
		"a@1", "a\\b", "é", "a%2fb", "a?b", "a#b", "a*", "c:/a", "~",
		strings.Repeat("a", blob.MaxSegment+1), strings.Repeat("a/", blob.MaxKey/2) + "a",
	} {
		_, create := w.Create(w.ctx, key, nil)
		_, replace := w.Replace(w.ctx, key, nil, "v")
		_, write := w.Write(w.ctx, key, nil)
		_, read := w.Read(w.ctx, key)
		_, prefix := w.ReadPrefix(w.ctx, key, 1)
		_, newer := w.ReadNewer(w.ctx, key, "v")
		for _, err := range []error{create, replace, write, read, prefix, newer, w.Delete(w.ctx, key)} {
			if !errors.Is(err, blob.ErrKey) || !blob.NotApplied(err) {
				w.Errorf("key %q: got %v, want a certain ErrKey", key, err)
			}
		}
	}
	for _, prefix := range []string{"/", "a//", "..", "../", ".tmp", "a\x00", "*"} {
		if _, err := w.List(w.ctx, prefix, "", 0); !errors.Is(err, blob.ErrKey) {
			w.Errorf("prefix %q: got %v, want ErrKey", prefix, err)
		}
	}
	w.wantKeys("", "", 0, nil)
}

func buffers(w *world) {
	data := []byte("one")
	if _, err := w.Create(w.ctx, "a", data); err != nil {
		w.Fatal(err)
	}
	copy(data, "xxx")
	w.want("a", "one")
	o, err := w.Read(w.ctx, "a")
	if err != nil {
		w.Fatal(err)
	}
	copy(o.Data, "yyy")
	w.want("a", "one")
}

// endedContext requires an error that wraps the context's, and no effect, because nothing was sent.
func endedContext(w *world) {
	v := w.create("a", "one")
	ended, cancel := context.WithCancel(w.ctx)
	cancel()
	_, create := w.Create(ended, "b", nil)
	_, replace := w.Replace(ended, "a", nil, v)
	_, write := w.Write(ended, "c", nil)
	_, read := w.Read(ended, "a")
	_, prefix := w.ReadPrefix(ended, "a", 1)
	_, newer := w.ReadNewer(ended, "a", "")
	_, list := w.List(ended, "", "", 0)
	for _, err := range []error{create, replace, write, read, prefix, newer, list, w.Delete(ended, "a")} {
		if !errors.Is(err, context.Canceled) || !blob.NotApplied(err) {
			w.Errorf("got %v, want a certain error with context.Canceled", err)
		}
	}
	w.want("a", "one")
	w.wantKeys("", "", 0, []string{"a"})
}
