package host

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
)

// identity holds the certificates of this process and the authorities that it trusts. It is read again
// when its files change.
type identity struct {
	server *tls.Config // of the listener; nil: no TLS
	client *tls.Config // of calls to other nodes; nil: no TLS
	mutual bool        // callers must present a certificate
}

// readIdentity reads the files of api.tls.
func readIdentity(c config.TLS) (*identity, error) {
	id := &identity{}
	var err error
	if c.Cert != "" {
		pair, err := keyPair("api.tls.cert", c.Cert, "api.tls.key", c.Key)
		if err != nil {
			return nil, err
		}
		id.server = &tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		if c.ClientCA != "" { // TLS checks a certificate if one is presented; the guard of the paths requires one
			if id.server.ClientCAs, err = authorities("api.tls.client_ca", c.ClientCA); err != nil {
				return nil, err
			}
			id.server.ClientAuth, id.mutual = tls.VerifyClientCertIfGiven, true
		}
	}
	id.client, err = ClientTLS(c)
	return id, err
}

// ClientTLS returns the TLS configuration of calls to other nodes, nil for no TLS. TLS is used if this
// node listens with it, because the others do as well, or if an authority for them is configured.
func ClientTLS(c config.TLS) (*tls.Config, error) {
	if c.Cert == "" && c.CA == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		var err error
		if out.RootCAs, err = authorities("api.tls.ca", c.CA); err != nil {
			return nil, err
		}
	}
	cert, key := [2]string{"api.tls.client_cert", c.ClientCert}, [2]string{"api.tls.client_key", c.ClientKey}
	if c.ClientCert == "" {
		cert, key = [2]string{"api.tls.cert", c.Cert}, [2]string{"api.tls.key", c.Key}
	}
	if cert[1] != "" && key[1] != "" {
		pair, err := keyPair(cert[0], cert[1], key[0], key[1])
		if err != nil {
			return nil, err
		}
		out.Certificates = []tls.Certificate{*pair}
	}
	return out, nil
}

func keyPair(certSetting, cert, keySetting, key string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fault.New(fault.AccessFile, "%s %s and %s %s: %w", certSetting, cert, keySetting, key, err).
			Hint("name a PEM certificate chain and its private key, readable for this user")
	}
	return &pair, nil
}

func authorities(key, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.New(fault.AccessFile, "%s: %w", key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fault.New(fault.AccessFile, "%s %s has no certificate in PEM", key, file)
	}
	return pool, nil
}
