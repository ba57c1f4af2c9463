package access

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"
)

// A session stands for a token in a browser, for a limited time. Every node with the access file can verify it, without a
// store and without a secret: it is signed with a key that is derived from the token, and the file has the public half.
// Whoever reads the file can therefore make neither tokens nor sessions, and whoever steals a session has not got the token.
//
//	sessionPrefix  base64url( token's sum [8]  end, Unix seconds [8]  signature [64] )

// sessionPrefix begins each session, so that none is taken for a token.
const sessionPrefix = "emitd-session."

const (
	keyLength    = 8
	claimsLength = keyLength + 8
	sealedLength = claimsLength + ed25519.SignatureSize
)

// sessionKey returns the key by which sessions of a token are signed.
func sessionKey(token string) ed25519.PrivateKey {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("emitd session 1"))
	return ed25519.NewKeyFromSeed(mac.Sum(nil))
}

// NewSession returns a session of a token.
func NewSession(token string, until time.Time) string {
	sum := sha256.Sum256([]byte(token))
	claims := binary.BigEndian.AppendUint64(bytes.Clone(sum[:keyLength]), uint64(until.Unix()))
	return sessionPrefix + base64.RawURLEncoding.EncodeToString(append(claims, ed25519.Sign(sessionKey(token), signed(claims))...))
}

// signed returns what is signed.
func signed(claims []byte) []byte { return append([]byte(sessionPrefix), claims...) }

// Session is a session as it was sent. It is verified by [Session.Of].
type Session struct {
	Until  time.Time
	sealed []byte
}

// ParseSession reads a session. It reports false for anything else, such as a token.
func ParseSession(text string) (Session, bool) {
	text, ok := strings.CutPrefix(text, sessionPrefix)
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(sealed) != sealedLength {
		return Session{}, false
	}
	return Session{time.Unix(int64(binary.BigEndian.Uint64(sealed[keyLength:claimsLength])), 0), sealed}, true
}

// Of reports whether this is a session of the entry's token. It does not look at the time.
func (s Session) Of(e *Entry) bool {
	return len(e.Session) == ed25519.PublicKeySize && bytes.Equal(s.sealed[:keyLength], e.Sum[:keyLength]) &&
		ed25519.Verify(e.Session, signed(s.sealed[:claimsLength]), s.sealed[claimsLength:])
}
