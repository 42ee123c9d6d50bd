package job

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// ErrOtherBytes: the copy of a peer has other bytes than its node claims.
var ErrOtherBytes = errors.New("it has other bytes than its node claims")

// verifyPeer reads the whole copy that the action names on another node, and compares it with the digest
// that the node claims and with the declared checksum. It writes nothing. Afterwards this node knows the
// chunk manifest of these bytes: proofs of the copy are compared with it (plan.ProofRequest).
func (j Job) verifyPeer(ctx context.Context) error {
	if j.Peers == nil {
		return errNoSource
	}
	for _, s := range j.PeerCopies() {
		at := ident.DiskRef{Node: s.Node, Disk: s.Disk}
		if at == j.Action.From.Disk && s.ID == j.Action.From.ID {
			return j.verifySource(ctx, s)
		}
	}
	return errNoSource
}

func (j Job) verifySource(ctx context.Context, s peer.Source) error {
	j.Progress.Total.Store(j.Action.Bytes)
	whole, declared := ident.SHA512.New(), io.Writer(io.Discard)
	var vendor hash.Hash
	if j.Image.Checksum.Algorithm() == ident.SHA256 {
		vendor = ident.SHA256.New()
		declared = vendor
	}
	// The digest of a manifest does not tell the algorithm of its chunk hashes.
	manifests := []disk.ManifestHash{disk.NewManifestHash(disk.ChunkSHA256), disk.NewManifestHash(disk.ChunkBLAKE3)}
	all := io.MultiWriter(whole, declared)
	err := j.Peers.ReadChunks(ctx, s, j.Action.Bytes, j.Image.BandwidthLimit, func(chunk []byte) {
		_, _ = all.Write(chunk) // a hash never fails
		for _, m := range manifests {
			m.AddChunk(chunk)
		}
		j.Progress.Done.Add(int64(len(chunk)))
		j.Progress.PeerBytes.Add(int64(len(chunk)))
	})
	if err != nil {
		return &fetch.Error{Class: fetch.Network, Err: err}
	}
	matches := ident.SHA512.Digest(whole) == j.Digest && (vendor == nil || ident.SHA256.Digest(vendor) == j.Image.Checksum)
	if !matches {
		return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("%s: %w", j.Action.From, ErrOtherBytes)}
	}
	matches = false
	for _, m := range manifests {
		j.Verified(m.Digest())
		matches = matches || m.Digest() == s.ManifestDigest
	}
	if !matches { // without an error, this copy would be read again and again
		return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("%s: its chunk manifest does not match its bytes: %w", j.Action.From, ErrOtherBytes)}
	}
	return nil
}
