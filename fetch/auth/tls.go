package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// AdminOrganization is the organization in the subject of a certificate with RoleAdmin.
const AdminOrganization = "backing-image-manager:admin"

// TLSFiles are the paths of PEM files: a certificate, its key, and the authorities that must have
// signed the certificates of others. "": the file is not given.
type TLSFiles struct{ Cert, Key, CA string }

// Given reports whether any file is given.
func (f TLSFiles) Given() bool { return f != TLSFiles{} }

// CheckServer checks that a daemon has all three files or none. A daemon uses its certificate for
// callers and for peers, and verifies their certificates.
func (f TLSFiles) CheckServer() error {
	if f.Given() && (f.Cert == "" || f.Key == "" || f.CA == "") {
		return errors.New("--tls-cert, --tls-key and --tls-ca must be given together")
	}
	return nil
}

// identity is the parsed content of the TLS files. It is immutable.
type identity struct {
	authorities []*x509.Certificate
	server      *tls.Config // nil without a certificate
	client      *tls.Config
	expires     time.Time // of the certificate; zero without one
}

// loadIdentity reads the files. Without a certificate, the identity can only be used by a client: it
// verifies servers and sends no certificate.
func loadIdentity(log *slog.Logger, f TLSFiles) (*reloader[*identity], error) {
	return newReloader(log, "certificate", func(contents [][]byte) (*identity, error) {
		return parseIdentity(f, contents[0], contents[1], contents[2])
	}, f.Cert, f.Key, f.CA)
}

func parseIdentity(f TLSFiles, cert, key, ca []byte) (*identity, error) {
	i := &identity{client: baseTLS()}
	var revoked error
	if f.CA != "" {
		var err error
		if i.authorities, err = parseCertificates(ca); err != nil {
			if len(bytes.TrimSpace(ca)) > 0 {
				return nil, fmt.Errorf("--tls-ca %s: %w", f.CA, err)
			}
			revoked = fmt.Errorf("--tls-ca %s: %w", f.CA, errNothingTrusted)
		}
		i.client.RootCAs = newPool(i.authorities)
	}
	if f.Cert == "" {
		return i, revoked
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", f.Cert, f.Key, err)
	}
	if err := checkClientUse(pair.Leaf); err != nil {
		return nil, fmt.Errorf("--tls-cert %s: %w", f.Cert, err)
	}
	// The client sends its certificate even if the server does not list the authority: the server then
	// reports an unknown authority, and not a missing certificate.
	i.client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	i.server = baseTLS()
	i.server.Certificates = []tls.Certificate{pair}
	i.server.ClientAuth = tls.VerifyClientCertIfGiven
	i.server.ClientCAs = newPool(i.authorities)
	chain, err := parseCertificates(cert)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s: %w", f.Cert, err)
	}
	i.expires = expiry(chain, i.authorities)
	return i, revoked
}

// baseTLS returns the settings that client and server share. HTTP/2 is off, because it would use one
// connection for all transfers of a peer. Session tickets are off, because a resumed session would
// ignore replaced files.
func baseTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true}
}

// checkClientUse returns an error for a certificate that every daemon would reject as a client
// certificate. It does not check the use as a server certificate, because clients do.
func checkClientUse(leaf *x509.Certificate) error {
	if end := leaf.NotAfter; time.Now().After(end) {
		return fmt.Errorf("it expired at %s: renew it", end.UTC().Format(time.RFC3339))
	}
	uses := leaf.ExtKeyUsage
	if len(uses)+len(leaf.UnknownExtKeyUsage) == 0 || slices.Contains(uses, x509.ExtKeyUsageAny) || slices.Contains(uses, x509.ExtKeyUsageClientAuth) {
		return nil
	}
	return errors.New("its extended key usage lacks clientAuth, which other daemons require: issue a certificate with it")
}

// expiry returns when the first certificate of a file stops being valid. A chain from it to an authority is valid until
// one of its certificates expires. The chain that is valid longest counts.
func expiry(file, authorities []*x509.Certificate) time.Time {
	leaf := file[0]
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: newPool(authorities), Intermediates: newPool(file[1:]), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return leaf.NotAfter // this process does not trust the authority that signed it
	}
	var last time.Time
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		if first.After(last) {
			last = first
		}
	}
	return last
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, errors.New("it contains no certificate")
	}
	return found, nil
}

func newPool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// isValidFor reports whether the certificate of this process is valid for a host name.
func (i *identity) isValidFor(host string) bool {
	return i.server != nil && i.server.Certificates[0].Leaf.VerifyHostname(host) == nil
}

// role returns the current role of a caller's certificate. The handshake verified the certificate
// once, but a connection may last longer than the certificate or its authority.
func (i *identity) role(s *tls.ConnectionState, now time.Time) Role {
	if s == nil || !slices.ContainsFunc(s.VerifiedChains, func(chain []*x509.Certificate) bool { return i.trusts(chain, now) }) {
		return RoleNone
	}
	if slices.Contains(s.PeerCertificates[0].Subject.Organization, AdminOrganization) {
		return RoleAdmin
	}
	return RolePeer
}

func (i *identity) trusts(chain []*x509.Certificate, now time.Time) bool {
	expired := func(c *x509.Certificate) bool { return now.After(c.NotAfter) }
	root := chain[len(chain)-1]
	return !slices.ContainsFunc(chain, expired) && slices.ContainsFunc(i.authorities, root.Equal)
}
