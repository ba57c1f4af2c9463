package dir

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/emitd/emitd/storage/blob"
)

// nonce identifies one file for ever.
type nonce [16]byte

func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails
	return n
}

// String returns the form of the nonce in file names and versions.
func (n nonce) String() string { return hex.EncodeToString(n[:]) }

// header is the beginning of every file: magic, nonce, the nonce that the file replaced, length and
// checksum of the data, and checksum of the header.
type header struct {
	self, replaced nonce
	length         uint64
	sum            uint32
}

const (
	magic      = "emitdob1"
	headerSize = len(magic) + 16 + 16 + 8 + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newHeader(data []byte) header {
	return header{self: newNonce(), length: uint64(len(data)), sum: crc32.Checksum(data, castagnoli)}
}

func (h header) encode() []byte {
	raw := make([]byte, 0, headerSize)
	raw = append(raw, magic...)
	raw = append(raw, h.self[:]...)
	raw = append(raw, h.replaced[:]...)
	raw = binary.LittleEndian.AppendUint64(raw, h.length)
	raw = binary.LittleEndian.AppendUint32(raw, h.sum)
	return binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
}

// decode refuses text that encode has not made, and a file that is longer or shorter than its
// header says.
func decode(raw []byte, fileSize int64) (h header, err error) {
	if len(raw) != headerSize || string(raw[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: the file does not begin with %q", blob.ErrCorrupt, magic)
	}
	body, rest := raw[:headerSize-4], raw[len(magic):]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(raw[headerSize-4:]) {
		return h, fmt.Errorf("%w: the checksum of the header is wrong", blob.ErrCorrupt)
	}
	copy(h.self[:], rest)
	copy(h.replaced[:], rest[16:])
	h.length = binary.LittleEndian.Uint64(rest[32:])
	h.sum = binary.LittleEndian.Uint32(rest[40:])
	if want := int64(headerSize) + int64(h.length); h.length > blob.MaxSize || want != fileSize {
		return h, fmt.Errorf("%w: the file has %d bytes, its header says %d", blob.ErrCorrupt, fileSize, want)
	}
	return h, nil
}

// file is an open file of the bucket.
type file struct {
	*os.File
	info os.FileInfo
	header
}

// open opens a file and reads its header. A directory is no object: it returns os.ErrNotExist.
func open(path string) (*file, error) {
	f, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	opened, err := readHeader(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return opened, nil
}

func readHeader(f *os.File) (*file, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, os.ErrNotExist
	}
	raw := make([]byte, headerSize)
	if _, err := io.ReadFull(f, raw); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	h, err := decode(raw, info.Size())
	if err != nil {
		return nil, err
	}
	return &file{File: f, info: info, header: h}, nil
}

// data reads the first n bytes. If that is all of the data, it checks the checksum.
func (f *file) data(n int) ([]byte, error) {
	data := make([]byte, min(uint64(n), f.length))
	if _, err := f.ReadAt(data, int64(headerSize)); err != nil && len(data) > 0 {
		return nil, err
	}
	if uint64(len(data)) == f.length && crc32.Checksum(data, castagnoli) != f.sum {
		return nil, fmt.Errorf("%w: the checksum of the data is wrong", blob.ErrCorrupt)
	}
	return data, nil
}

// copied is how many bytes of data, at most, are written together with the header: copying them costs less than a system call.
const copied = 32 << 10

// temporary writes a complete, synced file under a name that no reader looks for.
func (b *Bucket) temporary(h header, data []byte) (path string, err error) {
	if err := b.at("write"); err != nil {
		return "", err
	}
	path = filepath.Join(b.tmp(), h.self.String())
	f, err := openFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w: %w", blob.ErrNoBucket, err)
	}
	if err != nil {
		return "", err
	}
	raw := h.encode()
	if len(data) <= copied {
		raw, data = append(raw, data...), nil
	}
	_, err = f.Write(raw)
	if err == nil && len(data) > 0 {
		_, err = f.Write(data)
	}
	if err == nil && !b.noSync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return "", err
	}
	return path, nil
}

// syncDir makes the names in a directory durable. Callers share the sync with others who wait for one.
func (b *Bucket) syncDir(path string) error {
	if b.noSync {
		return nil
	}
	return b.syncs.sync(path, syncDir)
}

// makeDir creates a directory inside the bucket, and its parents, durably. It is called after a
// temporary file was written, so it never creates the bucket itself. A disk that is not mounted
// must not look like an empty bucket. It returns os.ErrNotExist if a deletion has removed the empty
// parent again.
func (b *Bucket) makeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err := b.makeDir(filepath.Dir(path)); err != nil {
			return err
		}
		if err := b.at("mkdir"); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.syncDir(filepath.Dir(path))
}

// at lets tests end a call before a step.
func (b *Bucket) at(step string) error {
	if b.step == nil {
		return nil
	}
	return b.step(step)
}

// errBusy is the error of a call that lost a thousand races.
var errBusy = fmt.Errorf("%w: other writers won a thousand times in a row", blob.ErrUnavailable)

// withCause adds a cause, if there is one, to a kind.
func withCause(kind, cause error) error {
	if cause == nil {
		return kind
	}
	return fmt.Errorf("%w: %w", kind, cause)
}

// withKind adds the kind to an error of the operating system. Its paths hold no secrets.
func withKind(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return withCause(blob.ErrDenied, err)
	case errors.Is(err, os.ErrNotExist):
		return withCause(blob.ErrNoBucket, err)
	}
	return withCause(blob.ErrUnavailable, err)
}

// asError gives an error the form of package blob. An error without a kind comes from a system call
// that failed before anything was visible.
func asError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	read := op == "read" || op == "list"
	if op == "read" && unreadable(err) {
		err = withCause(blob.ErrCorrupt, err)
	}
	if answer := read && (errors.Is(err, blob.ErrCorrupt) || errors.Is(err, blob.ErrNotModified)); !answer &&
		!blob.NotApplied(err) && !errors.Is(err, blob.ErrUnknownOutcome) {
		err = withKind(err)
	}
	return &blob.Error{Op: op, Key: key, Kind: err}
}
