package host

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"
	"time"
)

// TestCertificateInForce checks that a certificate outside its validity is refused.
func TestCertificateInForce(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for want, span := range map[string][2]time.Time{
		"":                 {now.Add(-time.Hour), now.Add(time.Hour)},
		"expired at":       {now.Add(-2 * time.Hour), now.Add(-time.Hour)},
		"not valid before": {now.Add(time.Hour), now.Add(2 * time.Hour)},
	} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: span[0], NotAfter: span[1]}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid([][]byte{der}, "cert.pem"); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
