package mem_test

import (
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, blobtest.Config{Open: func(*testing.T) func() blob.Bucket {
		b := mem.New(mem.Config{})
		return func() blob.Bucket { return b }
	}})
}
