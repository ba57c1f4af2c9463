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

// digest replaces a key that is not a valid group.
func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// has reports whether codes contain a code; some services prefix it with a namespace.
func has(codes []string, code string) bool {
	if _, after, two := strings.Cut(code, "#"); two {
		code = after
	}
	return slices.Contains(codes, code)
}

// status returns the HTTP status of the answer, or 0 if there is none.
func status(err error) int {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && r.Response != nil {
		return r.HTTPStatusCode()
	}
	return 0
}

// serviceMessage returns the service's own text, without the client's wrapping.
func serviceMessage(api smithy.APIError) error {
	return fmt.Errorf("%s: %s", api.ErrorCode(), api.ErrorMessage())
}

// withoutWrapping removes URLs from the client's error about a connection.
func withoutWrapping(err error) error {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && r.Response != nil {
		return fmt.Errorf("cannot understand the answer with status %d", r.HTTPStatusCode())
	}
	if s, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
		return sink.WithoutURL(s.Err)
	}
	return sink.WithoutURL(err)
}
