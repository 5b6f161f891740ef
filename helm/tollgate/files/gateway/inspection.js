// Let pass only requests that the contract allows; refuse all others before Triton sees
// them. docs/gateway.md, docs/contract.md. It runs in njs 0.7.9 (Debian 12) and newer.
//
// This is a list of what is allowed: a field, a parameter or a wire type that is not
// named here is refused. So two readers of one message cannot differ on what it says.
import fs from 'fs';
import crypto from 'crypto';

const MAX_ROWS = 32;
const MAX_NAME_BYTES = 128;
const VARINT_BYTES = 10;

// A caller is suspended after this many harmful requests with no more than this time
// between one and the next, until this time after the last one.
const HARMFUL_REQUESTS = 3;
const SUSPENSION_MS = 60000;

const NAME = /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/;

// Wire types of protobuf.
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;

// By datatype: bytes of an element in raw contents (0: each has a length of its own),
// and the number, wire type and width of its field in typed contents.
const DATATYPES = {
    BYTES: { width: 0, field: 8, wire: BYTES },
    FP64: { width: 8, field: 7, wire: FIXED64 },
    INT64: { width: 8, field: 3, wire: VARINT },
};
// By request parameter: the field of InferParameter that holds it.
const PARAMETERS = {
    deadline_us: { field: 2, words: 'an int64' },
    dry_run: { field: 1, words: 'a bool' },
    store_deadline_ms: { field: 2, words: 'an int64' },
};

const READERS = {
    '/inference.GRPCInferenceService/ModelInfer': readInfer,
    '/inference.GRPCInferenceService/ModelReady': readModel,
    '/inference.GRPCInferenceService/ModelMetadata': readModel,
    '/inference.GRPCInferenceService/ServerLive': readEmpty,
    '/inference.GRPCInferenceService/ServerReady': readEmpty,
    '/inference.GRPCInferenceService/ServerMetadata': readEmpty,
    '/grpc.health.v1.Health/Check': readHealth,
};

// Why a request is refused: `outcome` is the word of logs and metrics.
function Refusal(outcome, words) {
    this.outcome = outcome;
    this.words = words;
}

function refuse(words) {
    throw new Refusal('malformed', words);
}

function harmful(words) {
    throw new Refusal('harmful', words);
}

// Quote a text of the caller so that it fits into a header.
function quoted(text) {
    return '"' + text.slice(0, 64).replace(/[^ !#$&-~]/g, '?') + '"';
}

// Protobuf ---------------------------------------------------------------------------

// A part of the body: it is read from `at` to `end`.
function Part(body, at, end) {
    this.body = body;
    this.at = at;
    this.end = end;
    this.wire = 0;
}

// Read a number; over 2^53 it is not exact, and nothing here allows so large a one.
Part.prototype.varint = function () {
    const body = this.body;
    const most = Math.min(this.end, this.at + VARINT_BYTES);
    let scale = 1;
    let value = 0;
    while (this.at < most) {
        const byte = body[this.at++];
        if (byte < 128) {
            return value + byte * scale;
        }
        value += (byte - 128) * scale;
        scale *= 128;
    }
    refuse('a number is cut or too long');
};

// Read the next field's number. All fields that are allowed have a tag of one byte.
Part.prototype.field = function (what) {
    const tag = this.body[this.at++];
    if (tag > 127) {
        refuse(what + ' has an unknown field');
    }
    this.wire = tag & 7;
    return tag >> 3;
};

Part.prototype.want = function (wire, what) {
    if (this.wire !== wire) {
        refuse(what + ' has the wrong wire type');
    }
};

// Step over so many bytes.
Part.prototype.skip = function (bytes) {
    this.at += bytes;
    if (this.at > this.end) {
        refuse('the message is cut');
    }
};

Part.prototype.part = function (what) {
    this.want(BYTES, what);
    const bytes = this.varint();
    const at = this.at;
    this.skip(bytes);
    return new Part(this.body, at, this.at);
};

Part.prototype.text = function (what) {
    const part = this.part(what);
    if (part.end - part.at > MAX_NAME_BYTES) {
        refuse(what + ' has over ' + MAX_NAME_BYTES + ' bytes');
    }
    const text = this.body.toString('utf8', part.at, part.end);
    if (text.indexOf('\ufffd') >= 0) {
        refuse(what + ' is not UTF-8');
    }
    return text;
};

function once(seen, key, what) {
    if (seen[key]) {
        refuse(what + ' is there twice');
    }
    seen[key] = true;
}

// The messages -----------------------------------------------------------------------

function readEmpty(message) {
    if (message.at < message.end) {
        refuse('the message has a field, and this method takes none');
    }
}

function readHealth(message) {
    const seen = {};
    while (message.at < message.end) {
        const field = message.field('the message');
        once(seen, field, 'field ' + field);
        if (field !== 1) {
            refuse('the message has an unknown field');
        }
        message.text('service');
    }
}

function checkModel(name, products) {
    if (!NAME.test(name) || (',' + products + ',').indexOf(',' + name + ',') < 0) {
        throw new Refusal('denied', 'model_name: ' + quoted(name) + ' is not a product');
    }
}

function checkVersion(version) {
    if (version !== '') {
        refuse('model_version: leave it out; the release names it');
    }
}

function readModel(message, products) {
    const seen = {};
    let name = '';
    while (message.at < message.end) {
        const field = message.field('the message');
        once(seen, field, 'field ' + field);
        if (field === 1) {
            name = message.text('name');
        } else if (field === 2) {
            checkVersion(message.text('version'));
        } else {
            refuse('the message has an unknown field');
        }
    }
    checkModel(name, products);
}

function readInfer(message, products) {
    const seen = {};
    const inputs = [];
    const raw = [];
    const names = { input: {}, output: {}, parameter: {} };
    let model = '';
    while (message.at < message.end) {
        const field = message.field('the message');
        if (field < 4) {
            once(seen, field, 'field ' + field);
        }
        switch (field) {
        case 1:
            model = message.text('model_name');
            break;
        case 2:
            checkVersion(message.text('model_version'));
            break;
        case 3:
            message.text('id');
            break;
        case 4:
            readParameter(message.part('parameters'), names.parameter);
            break;
        case 5:
            inputs.push(readInput(message.part('inputs'), names.input));
            break;
        case 6:
            readOutput(message.part('outputs'), names.output);
            break;
        case 7:
            raw.push(message.part('raw_input_contents'));
            break;
        default:
            refuse('the message has an unknown field');
        }
    }
    checkModel(model, products);
    checkInputs(inputs, raw);
}

function readParameter(entry, names) {
    const seen = {};
    let name = '';
    let value = null;
    while (entry.at < entry.end) {
        const field = entry.field('parameters');
        once(seen, field, 'a part of parameters');
        if (field === 1) {
            name = entry.text('a parameter');
        } else if (field === 2) {
            value = entry.part('parameters');
        } else {
            refuse('parameters has an unknown field');
        }
    }
    if (!PARAMETERS.hasOwnProperty(name)) {
        refuse('parameter ' + quoted(name) + ' is not known');
    }
    const known = PARAMETERS[name];
    once(names, name, 'parameter ' + name);
    if (value === null || value.at === value.end
        || value.field('parameter ' + name) !== known.field || value.wire !== VARINT) {
        refuse('parameter ' + name + ' is not ' + known.words);
    }
    value.varint();
    if (value.at < value.end) {
        refuse('parameter ' + name + ' is not ' + known.words);
    }
}

function readInput(part, names) {
    const seen = {};
    const shape = [];
    const input = { name: '', datatype: '', rows: 0, contents: null };
    let parameters = false;
    while (part.at < part.end) {
        const field = part.field('inputs');
        if (field !== 3 && field !== 4) {
            once(seen, field, 'a part of inputs');
        }
        switch (field) {
        case 1:
            input.name = part.text('the name of an input');
            break;
        case 2:
            input.datatype = part.text('datatype');
            break;
        case 3:
            readShape(part, shape);
            break;
        case 4:
            part.part('inputs');
            parameters = true;
            break;
        case 5:
            input.contents = part.part('contents');
            break;
        default:
            refuse('inputs has an unknown field');
        }
    }
    const what = checkName('input', input.name, names);
    if (parameters) {
        harmful(what + ' has parameters; none are taken');
    }
    if (!DATATYPES.hasOwnProperty(input.datatype)) {
        refuse(what + ': datatype ' + quoted(input.datatype)
               + ' is not BYTES, FP64 or INT64');
    }
    if (shape.length !== 2 || shape[1] !== 1 || shape[0] < 1 || shape[0] > MAX_ROWS) {
        refuse(what + ': shape is not [N, 1] with N from 1 to ' + MAX_ROWS);
    }
    input.rows = shape[0];
    return input;
}

function readShape(part, shape) {
    if (part.wire === VARINT) {
        shape.push(part.varint());
    } else {
        const packed = part.part('shape');
        while (packed.at < packed.end && shape.length < 3) {
            shape.push(packed.varint());
        }
    }
    if (shape.length > 2) {
        refuse('shape has over 2 numbers');
    }
}

function readOutput(part, names) {
    const seen = {};
    let name = '';
    let parameters = false;
    while (part.at < part.end) {
        const field = part.field('outputs');
        if (field === 1) {
            once(seen, field, 'the name of an output');
            name = part.text('the name of an output');
        } else if (field === 2) {
            part.part('outputs');
            parameters = true;
        } else {
            refuse('outputs has an unknown field');
        }
    }
    const what = checkName('output', name, names);
    if (parameters) {
        harmful(what + ' has parameters; none are taken');
    }
}

function checkName(kind, name, names) {
    if (!NAME.test(name)) {
        refuse('an ' + kind + ' is called ' + quoted(name));
    }
    // The sign keeps names such as __proto__ apart from what every object has.
    once(names, '=' + name, kind + ' ' + name);
    return kind + ' ' + name;
}

// Tensors hold as many elements as their shape says.
function checkInputs(inputs, raw) {
    if (inputs.length === 0) {
        refuse('there are no inputs');
    }
    if (raw.length && raw.length !== inputs.length) {
        refuse(raw.length + ' raw_input_contents for ' + inputs.length + ' inputs');
    }
    for (let i = 0; i < inputs.length; i++) {
        const input = inputs[i];
        const what = 'input ' + input.name;
        if (input.rows !== inputs[0].rows) {
            refuse(what + ' has ' + input.rows + ' rows, and others have '
                   + inputs[0].rows);
        }
        if (raw.length && input.contents !== null) {
            refuse(what + ' has raw and typed contents');
        }
        if (!raw.length && input.contents === null) {
            refuse(what + ' has no contents');
        }
        const type = DATATYPES[input.datatype];
        const found = raw.length ? countRaw(raw[i], type, what)
            : countTyped(input.contents, type, what);
        if (found !== input.rows) {
            refuse(what + ' has not as many elements as its shape says');
        }
    }
}

function countRaw(part, type) {
    if (type.width) {
        return (part.end - part.at) / type.width;
    }
    let count = 0;
    while (part.at < part.end && count <= MAX_ROWS) {
        const at = part.at;
        part.skip(4);
        part.skip(part.body.readUInt32LE(at));
        count++;
    }
    return count;
}

function countTyped(contents, type, what) {
    let count = 0;
    while (contents.at < contents.end && count <= MAX_ROWS) {
        if (contents.field(what) !== type.field) {
            refuse(what + ' has contents of another type');
        }
        if (type.wire === BYTES || contents.wire !== BYTES) {
            contents.want(type.wire, what);
            stepOver(contents, type.wire);
            count++;
            continue;
        }
        const packed = contents.part(what);
        while (packed.at < packed.end && count <= MAX_ROWS) {
            stepOver(packed, type.wire);
            count++;
        }
    }
    return count;
}

function stepOver(part, wire) {
    if (wire === VARINT) {
        part.varint();
    } else {
        part.skip(wire === BYTES ? part.varint() : 8);
    }
}

// Suspension -------------------------------------------------------------------------

// A file of each caller who sent something harmful, a line for each such request. All
// processes of nginx see it. It counts for nothing once it is older than the suspension.
function recordOf(r) {
    const name = crypto.createHash('sha256').update(r.variables.gateway_caller);
    return r.variables.gateway_suspensions + '/' + name.digest('hex');
}

// Whether the last harmful request is recent.
function isRecent(record) {
    const found = fs.statSync(record, { throwIfNoEntry: false });
    return found !== undefined && Date.now() - found.mtimeMs < SUSPENSION_MS;
}

function isSuspended(record) {
    try {
        return isRecent(record)
            && fs.readFileSync(record, 'utf8').split('\n').length > HARMFUL_REQUESTS;
    } catch (problem) {
        // The record cannot be read. The request is inspected like any other; what keeps
        // a record from being written is logged then.
        return false;
    }
}

function note(r, record) {
    const line = new Date().toISOString() + ' ' + r.variables.request_id + '\n';
    (isRecent(record) ? fs.appendFileSync : fs.writeFileSync)(record, line);
}

// The answer -------------------------------------------------------------------------

// nginx.conf answers these two with its location @refused.
const INVALID_ARGUMENT = 530;
const PERMISSION_DENIED = 531;

function answer(r, refusal) {
    const denied = refusal.outcome === 'denied' || refusal.outcome === 'suspended';
    r.variables.gateway_refused = refusal.outcome;
    r.variables.gateway_why = refusal.words;
    r.return(denied ? PERMISSION_DENIED : INVALID_ARGUMENT);
}

function read(r) {
    const body = r.requestBuffer;
    if (!body || body.length < 5) {
        refuse('there is no message');
    }
    if (body[0] !== 0) {
        refuse('the message is compressed; send it as it is');
    }
    if (body.readUInt32BE(1) !== body.length - 5) {
        refuse('the body is not one message of gRPC');
    }
    const reader = READERS[r.uri];
    reader(new Part(body, 5, body.length), r.variables.gateway_products);
}

function inspect(r) {
    const record = recordOf(r);
    try {
        if (isSuspended(record)) {
            throw new Refusal('suspended', 'suspended for a minute after '
                              + HARMFUL_REQUESTS + ' harmful requests');
        }
        read(r);
    } catch (error) {
        if (!(error instanceof Refusal)) {
            r.error('inspection: ' + error);
            error = new Refusal('malformed', 'not a request');
        }
        if (error.outcome === 'harmful') {
            try {
                note(r, record);
            } catch (problem) {
                r.error('inspection: no record of a harmful request: ' + problem);
            }
        }
        answer(r, error);
        return;
    }
    r.internalRedirect('@triton');
}

export default { inspect };
