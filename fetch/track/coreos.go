package track

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// coreOSBuilds is the host of the files of Fedora CoreOS.
const coreOSBuilds = "builds.coreos.fedoraproject.org"

// coreOSStream is the metadata of a stream.
type coreOSStream struct {
	Stream        string
	Architectures map[string]struct {
		Artifacts map[string]coreOSArtifact
	}
}

type coreOSArtifact struct {
	Release string
	Formats map[string]struct {
		Disk *coreOSFile
	}
}

// coreOSFile is a file of a release. SHA256 is the checksum of the file as it is sent, which may be packed.
type coreOSFile struct {
	Location     string
	SHA256       string `json:"sha256"`
	Uncompressed string `json:"uncompressed-sha256"`
}

func (r *Resolver) coreOS(ctx context.Context, t schema.TrackCoreOS, m Image) (Answer, error) {
	if m.Verify != nil {
		return Answer{}, refuse(Unsigned, "the metadata of a stream has no signature: change the image by hand")
	}
	d, err := r.read(ctx, t.URL, m.Credentials)
	if err != nil {
		return Answer{}, unreadable(err)
	}
	release, file, err := parseCoreOS(d.Data, t)
	if err != nil {
		return Answer{}, err
	}
	location, err := fileLocation(t.URL, file.Location)
	if err != nil {
		return Answer{}, err
	}
	pinned := version(nil)
	if v, ok := versionIn(m.path(), location.Path, release); ok {
		pinned = version{v}
	}
	return judge(ctx, m, pinned, []candidate{{version{release}, release, func(context.Context) (found, error) {
		f := found{version: version{release}, url: location.String()}
		sum := file.Uncompressed
		if sum == "" && !(fetch.Request{URL: f.url, Unpack: m.Unpack}).IsPacked() {
			sum = file.SHA256
		}
		var err error
		if sum != "" {
			f.checksums, err = parseChecksum(ident.SHA256, sum)
		}
		return f, err
	}}})
}

// parseCoreOS returns the release of the artifact that t names, and its file.
func parseCoreOS(data []byte, t schema.TrackCoreOS) (release string, file coreOSFile, err error) {
	var stream coreOSStream
	if err := json.Unmarshal(data, &stream); err != nil || stream.Stream == "" || stream.Architectures == nil {
		return "", file, refuse(Malformed, "the document is not the metadata of a stream")
	}
	artifact, ok := stream.Architectures[t.Arch].Artifacts[t.Artifact]
	if !ok {
		return "", file, refuse(NothingMatches, "the stream has no artifact %q for the architecture %q: correct the field track", t.Artifact, t.Arch)
	}
	var formats []string
	for name, f := range artifact.Formats {
		if f.Disk != nil && (t.Format == "" || t.Format == name) {
			formats, file = append(formats, name), *f.Disk
		}
	}
	slices.Sort(formats)
	switch {
	case len(formats) == 0:
		return "", file, refuse(NothingMatches, "the artifact %q has no disk of the format %q: correct the field track", t.Artifact, t.Format)
	case len(formats) > 1:
		return "", file, refuse(Ambiguous, "the artifact %q has the formats %q: set format in track", t.Artifact, formats)
	case artifact.Release == "" || len(artifact.Release) > maxVersion:
		return "", file, refuse(Malformed, "the artifact %q has no release", t.Artifact)
	}
	return artifact.Release, file, nil
}

// fileLocation parses the address of a file in the metadata of a stream.
func fileLocation(stream, addr string) (*url.URL, error) {
	own, err := url.Parse(stream)
	if err != nil {
		return nil, refuse(ForeignAddress, "the address of the stream is not a URL")
	}
	u, err := url.Parse(addr)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !isPlain(addr) {
		return nil, refuse(Malformed, "the address of the file is not a plain URL")
	}
	same := u.Scheme == own.Scheme && u.Host == own.Host
	if !same && (u.Scheme != "https" || u.Host != coreOSBuilds) {
		return nil, refuse(ForeignAddress, "the file is on the host %q, which is not the host of the stream", u.Host)
	}
	return u, nil
}
