package blobtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// outcomes are the cases of what an error says.
var outcomes = map[string]func(*world){
	"cut off calls are told apart": cutOff,
	"probe accepts the store":      probe,
}

// cutOff gives calls less time than they may need, from none to plenty. What each of them says
// about its effect must be true.
func cutOff(w *world) {
	for n := range w.config.many(60) {
		key := fmt.Sprintf("slot/%d", n)
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration(n*n)*10*time.Microsecond)
		_, err := w.Create(ctx, key, []byte("x"))
		cancel()
		o, readErr := w.Read(w.ctx, key)
		switch {
		case readErr != nil && !errors.Is(readErr, blob.ErrNotFound):
			w.Fatal(readErr)
		case err == nil && o == nil:
			w.Errorf("create %s was acknowledged and is not there", key)
		case blob.NotApplied(err) && o != nil:
			w.Errorf("create %s is there in spite of: %v", key, err)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			w.Errorf("create %s: got %v, want the context's error in it", key, err)
		}
	}
}

func probe(w *world) {
	if err := blob.Probe(w.ctx, w.Bucket); err != nil {
		w.Fatal(err)
	}
	if err := blob.Probe(w.ctx, w.another()); err != nil {
		w.Fatalf("a second time: %v", err)
	}
	w.wantKeys("", "", 0, nil)
}
