package schema

import (
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var backingImageForm = &form{
	group: "longhorn.io", versions: longhornVersions, kind: "BackingImage", definition: "#BackingImage",
	read: func(c *content, m manifest) {
		c.add(m, key{imagesSection, longhornName(m.name)})
	},
	translate: translateBackingImage,
}

// credentialsAnnotation names the folder of credentials that Longhorn's form has
// no field for.
const credentialsAnnotation = "backing-image-manager/credentials"

func translateBackingImage(tr *translation) {
	name := at("metadata.name")
	tr.rename(name, tr.text(name))
	tr.backingImageSource()
	tr.carry(at("minNumberOfCopies"), at("spec.minNumberOfCopies"))
	tr.carry(at("nodeSelector"), at("spec.nodeSelector"))
	tr.carry(at("diskSelector"), at("spec.diskSelector"))
	tr.carry(at("uuid"), at("status.uuid"))
	tr.backingImageChecksum()

	if v := tr.get(at("spec.secret")); v != nil && tr.get(at("spec.secretNamespace")) == nil {
		tr.fault(at("spec.secretNamespace"), "is missing", "a secret is known by its name and its namespace")
	}
	if tr.text(at("spec.dataEngine")) == "v2" {
		tr.fault(at("spec.dataEngine"), "v2 backing image is not supported", "write v1, or remove it")
	}
	if tr.get(at("metadata.deletionTimestamp")) != nil {
		tr.warn(at("metadata.deletionTimestamp"), "is being deleted in Longhorn, and is declared here", "remove the manifest to have the image removed")
	}
	tr.evictedFiles()
}

// backingImageSource also reads the form of v1beta1, which knew nothing but downloads.
func (tr *translation) backingImageSource() {
	url, kind := at("spec.imageURL"), at("spec.sourceType")
	if tr.get(url) == nil {
		tr.source(kind, at("spec.sourceParameters"))
		return
	}
	if old, now := tr.text(url), tr.text(at("spec.sourceParameters.url")); tr.get(kind) != nil {
		tr.source(kind, at("spec.sourceParameters"))
		if old != now {
			tr.fault(url, "is not what sourceParameters says", "remove it: it is the form of an older Longhorn")
		}
		return
	}
	tr.set(at("source.download"), url, &document.Value{Kind: document.Map, Pos: tr.get(url).Pos})
	tr.carry(at("source.download.url"), url)
	tr.credentials("download")
}

// backingImageChecksum takes the established checksum of a dump where none is
// declared. Of what is encrypted each time anew, it says nothing.
func (tr *translation) backingImageChecksum() {
	native, declared := at("checksum"), at("spec.checksum")
	if tr.get(declared) == nil && tr.get(at("status.checksum")) != nil && tr.text(at("spec.sourceParameters.encryption")) != string(Encrypt) {
		declared = at("status.checksum")
	}
	tr.carry(native, declared)
	tr.otherEdition()
}

// otherEdition doubts a checksum that was declared anew beside a status that still names
// the folder of what was there before.
func (tr *translation) otherEdition() {
	path := at("spec.checksum")
	declared, wrong := disk.ParseDigest(tr.text(path))
	was, unknown := disk.ParseDigest(tr.text(at("status.checksum")))
	if wrong != nil || unknown != nil || declared.Algorithm() != was.Algorithm() || declared == was || tr.get(at("status.uuid")) == nil {
		return
	}
	if tr.text(at("spec.sourceParameters.encryption")) != string(Encrypt) {
		tr.warn(path, "is not the one in status, which the file of status.uuid has", "for another edition remove uuid and checksum from status")
	}
}

// evictedFiles says that placement is not taken from a dump.
func (tr *translation) evictedFiles() {
	files := tr.get(at("spec.diskFileSpecMap"))
	if files == nil {
		return
	}
	for _, f := range files.Fields {
		if e := f.Value.Field("evictionRequested"); e != nil && e.Value.Text == "true" {
			tr.warn(at("spec.diskFileSpecMap").With(f.Name).With("evictionRequested"), "is not used: where copies are follows from the nodes and disks",
				"set evictionRequested of the node or disk")
		}
	}
}

// parameter is one of a source, in Longhorn's words and in ours ("" where we
// have no use for it).
type parameter struct{ longhorn, native string }

// longhornSource is a kind of source in Longhorn's words.
type longhornSource struct {
	name       string
	kind       Kind
	parameters []parameter
}

var longhornSources = []longhornSource{
	{"download", KindDownload, []parameter{{"url", "url"}}},
	{"upload", KindUpload, nil},
	{"export-from-volume", KindExportFromVolume, []parameter{{"volume-name", "volumeName"}, {"export-type", "exportType"}}},
	{"restore", KindRestore, []parameter{{"backup-url", "backupURL"}, {"concurrent-limit", "concurrentLimit"}, {"backup-target-name", ""}}},
	{"clone", KindClone, []parameter{{"backing-image", "backingImage"}, {"encryption", "encryption"}, {"secret", "secret"}, {"secret-namespace", ""}}},
}

func (s longhornSource) known() string {
	var names []string
	for _, p := range s.parameters {
		names = append(names, p.longhorn)
	}
	if len(names) == 0 {
		return "it takes none"
	}
	return "known here: " + strings.Join(names, ", ")
}

// longhornSourceOf returns the kind of that name, which manifests.cue knows.
func longhornSourceOf(name string) longhornSource {
	return longhornSources[slices.IndexFunc(longhornSources, func(s longhornSource) bool { return s.name == name })]
}

// source translates a kind of source and its parameters, which stand at two
// paths of the manifest.
func (tr *translation) source(kind, parameters document.Path) {
	if tr.get(kind) == nil {
		tr.fault(kind, "is missing", "has to be download, upload, export-from-volume, restore or clone")
		return
	}
	s := longhornSourceOf(tr.text(kind))
	native := document.Path{"source", string(s.kind)}
	tr.set(native, kind, &document.Value{Kind: document.Map, Pos: tr.get(kind).Pos})
	for _, p := range s.parameters {
		from, to := parameters.With(p.longhorn), native.With(p.native)
		switch p.native {
		case "":
		case "concurrentLimit":
			tr.number(to, from)
		case "backingImage":
			tr.name(to, from)
		case "secret":
			tr.secret(to, parameters)
		default:
			tr.carry(to, from)
		}
	}
	tr.foreignParameters(s, parameters)
	tr.credentials(string(s.kind))
}

// foreignParameters finds those that another kind of source has.
func (tr *translation) foreignParameters(s longhornSource, parameters document.Path) {
	given := tr.get(parameters)
	if given == nil {
		return
	}
	for _, f := range given.Fields {
		if f.Value.Text == "" || slices.ContainsFunc(s.parameters, func(p parameter) bool { return p.longhorn == f.Name }) {
			continue
		}
		tr.faults = append(tr.faults, document.Problem{Path: parameters.With(f.Name), AtName: true, Message: "is no parameter of " + s.name, Hint: s.known()})
	}
}

// secret takes the name of a secret, which is the name of a folder here. Without
// encryption, Longhorn repeats the one of the source, which nobody needs.
func (tr *translation) secret(native, parameters document.Path) {
	encryption := tr.text(parameters.With("encryption"))
	if encryption == "" || encryption == string(EncryptionIgnore) {
		return
	}
	from := parameters.With("secret")
	if tr.get(from) == nil && tr.get(at("spec.secret")) != nil {
		from = at("spec.secret")
	}
	tr.carry(native, from)
	if namespace := parameters.With("secret-namespace"); tr.get(parameters.With("secret")) != nil && tr.get(namespace) == nil {
		tr.fault(namespace, "is missing", "a secret is known by its name and its namespace")
	}
}

func (tr *translation) credentials(kind string) {
	from := document.Path{"metadata", "annotations", credentialsAnnotation}
	if tr.get(from) == nil {
		return
	}
	if kind != string(KindDownload) && kind != string(KindRestore) {
		tr.fault(from, "is not used by this kind of source", "remove it")
		return
	}
	tr.carry(document.Path{"source", kind, "credentials"}, from)
}
