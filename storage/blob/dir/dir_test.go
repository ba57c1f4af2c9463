package dir_test

import (
	"testing"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/dir"
)

func open(t *testing.T, config dir.Config) *dir.Bucket {
	t.Helper()
	b, err := dir.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, noSync := range map[string]bool{"synced": false, "not synced": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blobtest.Run(t, blobtest.Config{Open: func(t *testing.T) func() blob.Bucket {
				path := t.TempDir()
				return func() blob.Bucket { return open(t, dir.Config{Path: path, NoSync: noSync}) }
			}})
		})
	}
}
