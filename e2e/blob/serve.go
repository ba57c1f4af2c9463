package blob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/fsouza/fake-gcs-server/fakestorage"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// serveVersity runs versitygw on dir. It stores metadata in extended attributes. Metadata in separate
// files ("sidecar") would change at another moment than the data: a reader could get old data with the
// new ETag, and a killed process would leave them in that state.
func serveVersity(address, dir string) error {
	if err := (meta.XattrMeta{}).Test(dir); err != nil {
		return fmt.Errorf("versitygw needs extended attributes in %s (set TMPDIR to a directory on ext4 or XFS): %w", dir, err)
	}
	store, err := posix.New(dir, meta.XattrMeta{}, posix.PosixOpts{})
	if err != nil {
		return fmt.Errorf("versitygw: %w", err)
	}
	err = embedgw.RunVersityGW(context.Background(), store, &embedgw.Config{
		RootUserAccess: access, RootUserSecret: secret, Ports: []string{address}, Quiet: true, KeepAlive: true,
		MaxConnections: 4096, MaxRequests: 4096, MultipartMaxParts: 10000,
	})
	return fmt.Errorf("versitygw: %w", errors.Join(err, errors.New("ended")))
}

// serveGCS runs fake-gcs-server in memory, because on a directory it loses objects when it is killed.
func serveGCS(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		Scheme: "http", Host: host, Port: uint16(number),
	})
	if err != nil {
		return fmt.Errorf("fake-gcs-server: %w", err)
	}
	defer server.Stop()
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	select {} // until it is killed
}
