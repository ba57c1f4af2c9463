package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestYAML checks that the YAML of a status has the fields of its JSON, in the same order.
func TestYAML(t *testing.T) {
	t.Parallel()
	status, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "internal", "admin", "view", "testdata", "status.json"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "status.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeYAML(&b, json.RawMessage(status)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got:\n%s\nwant:\n%s", b.Bytes(), want)
	}
}
