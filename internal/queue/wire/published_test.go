package wire_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestPublishedSchema: the schema in docs/reference is the one from which the service is generated.
func TestPublishedSchema(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("queuev1", "queue.proto"))
	if err != nil {
		t.Fatal(err)
	}
	published, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "queue.proto"))
	if err != nil || !bytes.Equal(source, published) {
		t.Errorf("docs/reference/queue.proto differs from internal/queue/wire/queuev1/queue.proto (%v): copy it", err)
	}
}
