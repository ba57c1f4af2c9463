package object

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// Every object begins with one line of text, so that a person with a bucket browser sees what it
// is. A JSON text follows, compressed where it is long:
//
//	emitd <kind> <format> <CRC-32 of what follows, in hex>\n
//
// A format covers the names and meanings of all fields. An unknown field is an error, so a change
// that adds a field must raise format. An older program then refuses the object; otherwise it would
// write it back without the field. An object is written in the oldest format that has all of its
// fields, so that older programs go on until the new field is used.

// format is the newest version of the objects that this program reads and writes.
//
// Format 2 adds the states of units, and format 3 units with a key.
const format = 3

// formatOf returns the oldest format that has all fields of an object.
func formatOf(v any) int {
	switch o := v.(type) {
	case *cluster:
		switch {
		case o.GenerationFloor > 0 || slices.ContainsFunc(o.Units, func(r *daemon.Record) bool { return r.Unit.Key != "" }):
			return 3
		case len(o.UnitStates) > 0:
			return 2
		}
	case eventBatch:
		if slices.ContainsFunc(o.Events, func(e daemon.Event) bool { return e.Unit.Key != "" }) {
			return 3
		}
	}
	return 1
}

// kind says what an object is.
type kind string

const (
	kindCluster kind = "cluster"
	kindNode    kind = "node"
	kindEvents  kind = "events"
)

// compressed reports whether the text of an object is deflated.
func (k kind) compressed() bool { return k != kindNode }

// maxText bounds the decompressed size, so that a few kilobytes cannot use up all memory.
const maxText = 256 << 20

// seal encodes an object.
func seal(k kind, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the %s object: %w", k, err)
	}
	if k.compressed() {
		text = deflate(text)
	}
	return append(fmt.Appendf(nil, "emitd %s %d %08x\n", k, formatOf(v), crc32.ChecksumIEEE(text)), text...), nil
}

// deflaters are reused, because each has a megabyte of tables.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic("object: the level of compression is a constant: " + err.Error())
	}
	return w
}}

// deflate compresses. Writing to memory does not fail.
func deflate(text []byte) []byte {
	w, ok := deflaters.Get().(*flate.Writer)
	if !ok {
		panic("object: the pool holds one type")
	}
	defer deflaters.Put(w)
	var out bytes.Buffer
	w.Reset(&out)
	if _, err := w.Write(text); err != nil {
		panic("object: a buffer takes all: " + err.Error())
	}
	if err := w.Close(); err != nil {
		panic("object: a buffer takes all: " + err.Error())
	}
	return out.Bytes()
}

// open decodes an object into v. The error is blob.ErrCorrupt for bytes that no emitd has written,
// and a *storage.SchemaError for those of a newer emitd.
func open(k kind, data []byte, v any) error {
	head, text, ok := bytes.Cut(data, []byte("\n"))
	if !ok || len(head) > 64 {
		return corrupt(k, errors.New("it has no first line"))
	}
	var is kind
	var version int
	var sum uint32
	if n, err := fmt.Sscanf(string(head), "emitd %s %d %x", &is, &version, &sum); n < 2 || is != k || version < 1 {
		return corrupt(k, fmt.Errorf("its first line is %q: %w", head, err))
	}
	if version > format {
		return &storage.SchemaError{Have: version, Want: format, Hint: "a newer emitd has written this bucket; update this one"}
	}
	if crc32.ChecksumIEEE(text) != sum || string(head) != fmt.Sprintf("emitd %s %d %08x", k, version, sum) {
		return corrupt(k, errors.New("its checksum is wrong"))
	}
	if k.compressed() {
		var err error
		if text, err = inflate(text); err != nil {
			return corrupt(k, err)
		}
	}
	return corrupt(k, strict(text, v))
}

func inflate(data []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(data))
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err == nil && len(text) > maxText {
		err = fmt.Errorf("it has more than %d bytes", maxText)
	}
	return text, err
}

// strict decodes one JSON text. It accepts no unknown fields and nothing after the text.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind its text")
	}
	return nil
}

// corrupt says that an object is not what was written. A nil error stays nil.
func corrupt(k kind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the %s object: %w: %w", k, blob.ErrCorrupt, err)
}
