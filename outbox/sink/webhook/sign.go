package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// decodeSecret decodes "whsec_" and base64; the prefix may be missing.
func decodeSecret(s sink.Secret) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(string(s), "whsec_"))
	switch {
	case err != nil:
		return nil, errors.New(`is not "whsec_" and base64`)
	case len(key) < 24 || len(key) > 64:
		return nil, errors.New("must have 24 to 64 bytes before base64")
	}
	return key, nil
}

// sign sets the three headers of Standard Webhooks.
func (s *Sink) sign(h http.Header, id string, body []byte) {
	if len(s.keys) == 0 {
		return
	}
	stamp := strconv.FormatInt(s.now().Unix(), 10)
	signatures := make([]string, len(s.keys))
	for i, key := range s.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
}

// batchID returns the same ID for the same messages in the same order.
func batchID(d outbox.Delivery, rows []int) string {
	sum := sha256.New()
	for _, i := range rows {
		sum.Write(d.Rows[i].ID[:])
	}
	return "batch_" + hex.EncodeToString(sum.Sum(nil)[:16])
}
