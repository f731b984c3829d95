"""Sends mail with smtplib: `PORT hello` only greets, `PORT send ROOTS` sends what its input says, ten times in
the clear and ten times over TLS that both begin in band."""

import smtplib
import ssl
import sys
from email.message import EmailMessage

port, word, *rest = sys.argv[1:]


def greeted():
    smtp = smtplib.SMTP("localhost", int(port), timeout=20)
    smtp.ehlo("client.example")
    return smtp


if word == "hello":
    greeted().quit()
    sys.exit()

context = ssl.create_default_context(cafile=rest[0])
text = sys.stdin.read()
for tls in ("clear", "starttls"):
    for number in range(10):
        with greeted() as smtp:
            if tls == "starttls":
                smtp.starttls(context=context)
                smtp.ehlo("client.example")
            message = EmailMessage()
            message["From"], message["To"] = "one@client.example", "two@server.example"
            message["Subject"] = f"{tls} {number}"
            message.set_content(text)
            smtp.send_message(message)
