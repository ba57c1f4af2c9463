package drill

import (
	"context"
	"testing"

	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/object"
)

// TestDrillBucket is TestDrillLife for a cluster whose store is a directory of objects.
func TestDrillBucket(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	bucket, err := dir.Open(dir.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	store, err := object.Open(context.Background(), bucket, object.Config{Name: "file://" + path})
	if err != nil {
		t.Fatal(err)
	}
	life(t, New(t, "file://"+path, store))
}
