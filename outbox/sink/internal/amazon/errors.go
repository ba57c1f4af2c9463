package amazon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/emitd/emitd/outbox/sink"
)

// digest names a key that cannot name itself.
func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// has compares codes, which some services write with a namespace in front.
func has(codes []string, code string) bool {
	if _, after, two := strings.Cut(code, "#"); two {
		code = after
	}
	return slices.Contains(codes, code)
}

// status is the answer's status, or 0 if there is none.
func status(err error) int {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && r.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// short is the service's own words, without the client's wrapping.
func short(api smithy.APIError) error {
	return fmt.Errorf("%s: %s", api.ErrorCode(), api.ErrorMessage())
}

// bare takes URLs out of what the client says about a connection.
func bare(err error) error {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && r.Response != nil {
		return fmt.Errorf("answer %d makes no sense", r.HTTPStatusCode())
	}
	if s, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return sink.Bare(s.Err)
	}
	return sink.Bare(err)
}
